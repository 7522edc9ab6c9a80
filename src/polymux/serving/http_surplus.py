"""Connections that are too many: each is answered 503 as soon as its request begins, and ends in order.

They cost a socket and no protocol, and most only for a moment: those whose whole request is there as they are taken.
Others are waited for, but not for long: an answer before the request, or a close while the client still sends, is an
error to many clients, who then never see the answer.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from polymux.serving.http_door import Door, Reason
from polymux.serving.http_message import error_bytes

__all__ = ["Surplus"]

_PATIENCE_S = 5.0
"""For the beginning of a request, and then for the end of it."""
_LINE_NBYTES = 512
"""In which the path of a request has to be, to be seen here."""
_PIECE_NBYTES = 64 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_PIECES = 4
"""Of one connection, before others are looked at."""

LetIn = Callable[[socket.socket, bytes], bool]


@dataclass(slots=True)
class _Client:
    connection: socket.socket
    until: float
    reason: Reason
    told: bool = False


class Surplus:
    """Tells clients that there are too many of them, in the running event loop.

    Parameters
    ----------
    door : Door
        Counts them and has the reason.
    most : int
        Connections that are held at a time.
    room : callable
        Called when there is room for one again, after `is_full` said that there was none.
    let_in : callable
        Asked with a connection that would be refused because there are many requests, and with the path of its own;
        True: it was let in after all.
    """

    def __init__(self, door: Door, most: int, room: Callable[[], None], let_in: LetIn) -> None:
        self._loop = asyncio.get_running_loop()
        self._door = door
        self._most = most
        self._room = room
        self._let_in = let_in
        self._clients: OrderedDict[int, _Client] = OrderedDict()  # who is waited for longest comes first
        self._poll = select.epoll()
        self._loop.add_reader(self._poll.fileno(), self._look)
        self._answers: dict[str, bytes] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._was_full = False

    def is_full(self) -> bool:
        """Whether no further connection can be held."""
        self._was_full = len(self._clients) >= self._most
        return self._was_full

    def take(self, connection: socket.socket, reason: Reason) -> None:
        """Answer a connection and end it, as soon as its request is there."""
        connection.setblocking(False)
        if self._is_let_in(connection, reason):
            return
        try:
            request = connection.recv(_PIECE_NBYTES)
        except BlockingIOError:
            request = None
        except OSError:  # it is gone
            connection.close()
            return
        if request is not None and (not request or _is_whole(request)):
            self._tell(connection, reason, request)
            connection.close()
            return
        number = connection.fileno()
        try:
            self._poll.register(number, select.EPOLLIN)
        except OSError:  # no memory or place to wait for it
            self._tell(connection, reason, request or b"")
            connection.close()
            return
        client = _Client(connection, self._loop.time() + _PATIENCE_S, reason)
        self._clients[number] = client
        if request is not None:
            self._tell(connection, reason, request)
            client.told = True
        if self._timer is None:
            self._timer = self._loop.call_later(_PATIENCE_S, self._end_late)

    def close(self) -> None:
        """End all of them at once; those that have no answer yet get it."""
        for number, client in list(self._clients.items()):
            if not client.told:
                self._tell(client.connection, client.reason, b"")
            self._end(number)
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._poll.fileno())
        self._poll.close()

    def _look(self) -> None:
        for number, _ in self._poll.poll(0, self._most):
            self._read(number)
        if self._was_full and len(self._clients) < self._most:
            self._was_full = False
            self._room()

    def _read(self, number: int) -> None:
        client = self._clients[number]
        if not client.told and self._is_let_in(client.connection, client.reason):
            self._forget(number)
            return
        for _ in range(_PIECES):
            try:
                piece = client.connection.recv(_PIECE_NBYTES)
            except BlockingIOError:
                return
            except OSError:  # it is gone
                self._end(number)
                return
            if not client.told:
                self._tell(client.connection, client.reason, piece)
                if _is_whole(piece):
                    self._end(number)
                    return
                client.told = True
                client.until = self._loop.time() + _PATIENCE_S
                self._clients.move_to_end(number)
            if not piece:
                self._end(number)
                return

    def _tell(self, connection: socket.socket, reason: Reason, request: bytes) -> None:
        text = self._door.refuse(reason)
        answer = self._answers.get(text)
        if answer is None:
            answer = self._answers[text] = error_bytes(503, text, b"retry-after: 1\r\n", closes=True)
        if request.startswith(b"HEAD "):
            answer = answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        with suppress(OSError):  # it is gone, which the next read finds
            connection.send(answer)  # less than any socket's buffer
            connection.shutdown(socket.SHUT_WR)

    def _is_let_in(self, connection: socket.socket, reason: Reason) -> bool:
        """Whether its request is one of few for its path, and was let in."""
        if reason != "busy":
            return False
        try:
            words = connection.recv(_LINE_NBYTES, socket.MSG_PEEK).split(b" ", 2)
        except OSError:  # nothing is there yet, or it is gone
            return False
        return len(words) == 3 and self._let_in(connection, words[1].partition(b"?")[0])

    def _end(self, number: int) -> None:
        self._forget(number).connection.close()

    def _forget(self, number: int) -> _Client:
        with suppress(OSError):  # the operating system has forgotten it already
            self._poll.unregister(number)
        return self._clients.pop(number)

    def _end_late(self) -> None:
        now = self._loop.time()
        while self._clients:
            number, client = next(iter(self._clients.items()))
            if client.until > now:
                break
            if not client.told:
                self._tell(client.connection, client.reason, b"")
            self._end(number)
        self._timer = None
        if self._clients:
            first = next(iter(self._clients.values()))
            self._timer = self._loop.call_later(first.until - now, self._end_late)
        if self._was_full and len(self._clients) < self._most:
            self._was_full = False
            self._room()


def _is_whole(request: bytes) -> bool:
    """Whether the client has sent all that it wants to before it reads the answer, as far as can be seen."""
    head, end, body = request.partition(b"\r\n\r\n")
    if not end or _CHUNKED.search(head):
        return False
    length = _LENGTH.search(head)
    return length is None or len(body) >= int(length[1])
