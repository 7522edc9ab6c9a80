"""uvicorn's HTTP/1.1 connection with bounds, and the protocol's error object for what is refused.

uvicorn with httptools has no limit on the size of a request's header, and answers what is not HTTP in plain text. The
parser itself refuses what can smuggle a request: two lengths, or a length together with chunks.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from polymux.serving.http_door import Door
from polymux.serving.http_message import error_bytes
from polymux.serving.limits import Limits

__all__ = ["limited_protocol"]

_ONCE_MORE_S = 0.2
"""Timers are served before sockets: after a long turn of the loop, a connection may look idle that is not."""


def limited_protocol(limits: Limits, door: Door) -> type[HttpToolsProtocol]:
    """Return a connection class that refuses headers beyond the limit with 431.

    Requests that a full `door` does not let in are answered 503.
    """
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits, "door": door})


class _LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    limits: ClassVar[Limits]
    door: ClassVar[Door]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header: object | None = None  # the one that is being received
        self._unfinished_nbytes = 0
        self._header_nbytes = 0
        self._running: RequestResponseCycle | None = None
        self._skipping = False  # a request that has been refused; its body is of no interest

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; called by the event loop."""
        super().connection_made(transport)
        self._end_after(self.limits.body_idle_s)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket; called by the event loop."""
        header = self._header
        super().data_received(data)
        # The parser keeps a field to itself until it is complete; this bounds one that never is.
        self._unfinished_nbytes += len(data) if header is not None and header is self._header else 0
        if self.transport.is_closing():
            return
        if self._unfinished_nbytes > self.limits.header_nbytes:
            self._refuse_header()
        elif self._skipping or (self._header is not None and self._is_idle()):
            self._end_after(self.limits.body_idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note that the client is gone; called by the event loop."""
        self._unset_keepalive_if_required()
        # With pipelined requests uvicorn knows only the last one, but it is the first that runs.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self.door.came(cycle.scope["raw_path"])
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        """Start a request; called by the parser."""
        super().on_message_begin()
        self._header = object()
        self._unfinished_nbytes = self._header_nbytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the path; called by the parser."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the header or, after a body in chunks, of the trailer; called by the parser."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the handler, or refuse the request; called by the parser."""
        self._header = None
        if self.door.is_full(self.url.partition(b"?")[0]) and self._may_refuse():
            self._refuse_at_the_door()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; called by the parser."""
        if not self._skipping:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Take note of the end of a request; called by the parser."""
        if self._skipping:
            self._skipping = False
            self._end_after(self.timeout_keep_alive)
        else:
            super().on_message_complete()

    def _may_refuse(self) -> bool:
        """Whether the next bytes of this connection are those of the answer to this request."""
        return self._is_idle() and self.parser.get_method() != b"HEAD"

    def _is_idle(self) -> bool:
        """Whether no request of this connection has been let in that is not answered."""
        return self.cycle is None or self.cycle.response_complete

    def _refuse_at_the_door(self) -> None:
        """Answer 503 without a handler, and skip the body."""
        self._skipping = True
        text = self.door.refuse("busy")
        alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        closes = self.expect_100_continue or not alive
        self._answer(503, text, b"retry-after: 1\r\n", closes=closes)

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, unless the loop was busy and has not read what the client sent."""
        self.timeout_keep_alive_task = self.loop.call_later(_ONCE_MORE_S, super().timeout_keep_alive_handler)

    def _end_after(self, idle_s: float) -> None:
        """End the connection unless more comes within the time."""
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(idle_s, self.timeout_keep_alive_handler)

    def _count(self, nbytes: int) -> None:
        self._header_nbytes += nbytes
        if self._header_nbytes > self.limits.header_nbytes:
            raise ValueError("header too large")  # the parser stops, and uvicorn calls send_400_response

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP and end the connection."""
        if self._header_nbytes > self.limits.header_nbytes:
            self._refuse_header()
        else:
            self._answer(400, msg)

    def _refuse_header(self) -> None:
        self._answer(431, f"the header has more than {self.limits.header_nbytes} bytes")

    def _answer(self, status: int, message: str, fields: bytes = b"", *, closes: bool = True) -> None:
        self.transport.write(error_bytes(status, message, fields, closes=closes))
        if closes:
            self.transport.close()
