"""Taking connections: what counts as many at once, and what is left when one cannot be begun or waited for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from polymux.serving.http_accept import Acceptor
from polymux.serving.http_door import Door
from polymux.serving.http_surplus import Surplus
from polymux.serving.limits import Limits

REQUEST = b"GET /v2/models/a HTTP/1.1\r\nhost: a\r\n\r\n"


class Crowded(Door):
    """A door for two requests at a time, whatever their paths are."""

    def __init__(self) -> None:
        super().__init__(Limits(unseen_requests=2))

    def has_room(self, connections: int) -> bool:
        return connections < 2

    def has_few(self, path: bytes, more: int) -> bool:
        return False


class Accepting:
    """An acceptor whose protocols note that they were begun."""

    def __init__(self, door: Door) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connections: set[asyncio.Protocol] = set()
        self.begun = 0
        self.acceptor = Acceptor(self.listener, self._protocol, self.connections, door, 100)
        self.clients: list[socket.socket] = []

    def _protocol(self) -> asyncio.Protocol:
        self.begun += 1
        return asyncio.Protocol()

    def connect(self) -> socket.socket:
        self.clients.append(socket.create_connection(self.listener.getsockname()))
        return self.clients[-1]

    async def turns(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def until(self, begun: int) -> None:
        async with asyncio.timeout(10):
            while self.begun < begun:
                await asyncio.sleep(0.001)


def accepting(scenario: Callable[[Accepting], Awaitable[None]], door: Door) -> None:
    async def run() -> None:
        made = Accepting(door)
        try:
            await scenario(made)
        finally:
            await made.acceptor.close()
            for client in (*made.clients, made.listener):
                client.close()

    asyncio.run(run())


def test_connections_of_an_earlier_burst_do_not_count_for_a_later_client() -> None:
    async def scenario(accepting: Accepting) -> None:
        accepting.connect()
        accepting.connect()
        await accepting.until(2)
        await accepting.turns()
        accepting.connect()  # sends nothing: it is not let in for its path
        await accepting.until(3)

    accepting(scenario, Crowded())


def test_who_came_in_a_burst_and_sends_its_request_later_is_let_in() -> None:
    async def scenario(accepting: Accepting) -> None:
        for _ in range(3):
            accepting.connect()
        await accepting.until(2)
        await accepting.turns()
        assert accepting.begun == 2, "the third was one too many at once"
        accepting.clients[2].send(REQUEST)
        await accepting.until(3)

    accepting(scenario, Crowded())


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("no transport")])
def test_a_connection_that_cannot_be_begun_is_closed_and_counts_no_more(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(accepting: Accepting) -> None:
        async def fail(*_: object) -> None:
            raise error

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        monkeypatch.setattr(loop, "connect_accepted_socket", fail)
        client = accepting.connect()
        await accepting.until(1)
        await accepting.turns()
        assert not accepting.connections
        client.settimeout(10)
        assert client.recv(1) == b""

    accepting(scenario, Door(Limits()))


class Unable:
    """Waits for no connection; forgets none."""

    def __init__(self, poll: object) -> None:
        self._poll = poll
        self.registers = False

    def register(self, *_: int) -> None:
        if not self.registers:
            raise OSError(28, "no space left on device")

    def unregister(self, _: int) -> None:
        raise OSError(2, "no such file or directory")

    def __getattr__(self, name: str) -> object:
        return getattr(self._poll, name)


@pytest.mark.parametrize("registers", [False, True])
def test_a_client_that_cannot_be_waited_for_is_told_and_leaves_nothing(registers: bool) -> None:
    async def run() -> None:
        surplus = Surplus(Door(Limits()), 1, lambda: None, lambda *_: False)
        unable = Unable(surplus._poll)
        unable.registers = registers
        surplus._poll = unable  # type: ignore[assignment]
        ours, theirs = socket.socketpair()
        surplus.take(ours, "busy")
        assert surplus.is_full() == registers
        surplus.close()
        assert not surplus.is_full()
        assert theirs.recv(4096).startswith(b"HTTP/1.1 503")
        theirs.close()

    asyncio.run(run())
