"""The HTTP/1.1 server around the application: sockets, signals, an orderly end."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from polymux.serving.http_accept import Acceptor
from polymux.serving.http_app import HttpApp
from polymux.serving.http_door import Door
from polymux.serving.http_protocol import limited_protocol
from polymux.serving.limits import Limits

__all__ = ["BACKLOG", "bind", "serve_http"]

_log = logging.getLogger(__name__)

_DRAIN_S = 30
BACKLOG = 65_535
"""Connections that the operating system may keep until they are accepted; it has a limit of its own."""


def bind(host: str, port: int) -> socket.socket:
    """Bind the listening socket.

    Parameters
    ----------
    host : str
        Name or address, of IPv4 or IPv6.
    port : int
        0: any free one.

    Raises
    ------
    OSError
        When the address cannot be had; the message names it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process before its owner has cleaned up.

    It also takes connections by an `Acceptor`, which knows how many there may be.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket, limits: Limits, door: Door) -> None:
        super().__init__(config)
        self.servers = []
        self._listener = listener
        self._limits = limits
        self._door = door

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Take connections from now on."""
        made: Any = self.config.http_protocol_class
        protocol = functools.partial(made, config=self.config, server_state=self.server_state, app_state={})
        connections: set[Any] = self.server_state.connections
        surplus = self._limits.surplus_connections
        self._acceptor = Acceptor(self._listener, protocol, connections, self._door, surplus)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and answer the requests that run."""
        await self._acceptor.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Finish the running requests and return; at the second call do not wait for them."""
        _log.info("stopping; %s", "at once" if self.should_exit else "requests that run are answered first")
        self.force_exit = self.should_exit
        self.should_exit = True


async def serve_http(app: HttpApp, limits: Limits, listener: socket.socket, door: Door) -> None:
    """Serve until SIGINT or SIGTERM, then end the requests that run (for up to 30 s) and return.

    Parameters
    ----------
    app : HttpApp
        The application.
    limits : Limits
        Bounds of a request.
    listener : socket.socket
        Bound; closed in the end.
    door : Door
        Refuses what is too much.
    """
    config = uvicorn.Config(
        door.around(app),
        http=limited_protocol(limits, door),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    server = _Server(config, listener, limits, door)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    try:
        await server.serve(sockets=[listener])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
