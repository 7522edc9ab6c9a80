"""Taking connections: as many as there may be get a protocol, those beyond are told so and end.

The event loop's own server takes all that wait, and when the process is out of descriptors it closes them without a
word. Here the number of descriptors is known at any time: who finds no place, not even to be told, stays in the queue
of the operating system until there is one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable

from polymux.serving.http_door import Door
from polymux.serving.http_surplus import Surplus

__all__ = ["Acceptor"]

_log = logging.getLogger(__name__)

_IN_A_TURN = 4096
"""Connections taken before the event loop looks after others; about what an operating system lets wait."""
_PAUSE_S = 0.1
"""After which the operating system is asked again, when it had no descriptor or memory for a connection."""
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Takes the connections of a listening socket, in the running event loop, until it is closed.

    Parameters
    ----------
    listener : socket.socket
        Listens; remains the caller's.
    protocol : callable
        Makes the protocol of a connection.
    connections : set
        Those that there are. A protocol is put in as it is made and takes itself out when its connection is lost.
    door : Door
        Knows how many there may be, and counts who is refused.
    most_surplus : int
        Connections beyond those that are held until they are told so.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        connections: set[asyncio.Protocol],
        door: Door,
        most_surplus: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._protocol = protocol
        self._connections = connections
        self._door = door
        self._surplus = Surplus(door, most_surplus, self._go_on, self._let_in)
        self._opening: set[asyncio.Task[None]] = set()
        self._begun = self._begun_before = 0  # in this turn of the event loop, and in the one before
        self._few: Counter[bytes] = Counter()  # let in for their paths in this turn
        self._turn: asyncio.Handle | None = None  # ends the turn, where there is something to forget
        self._waiting: asyncio.TimerHandle | None = None
        self._open = True
        listener.setblocking(False)
        self._go_on()

    async def close(self) -> None:
        """Take no more, and end those that were one too many."""
        self._open = False
        if self._waiting is not None:
            self._waiting.cancel()
        if self._turn is not None:
            self._turn.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._surplus.close()
        if self._opening:
            await asyncio.wait(self._opening)

    def _go_on(self) -> None:
        if self._open:
            self._waiting = None
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_IN_A_TURN):
            if self._surplus.is_full():
                self._loop.remove_reader(self._listener.fileno())  # goes on as soon as one of them has ended
                return
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NONE_LEFT:
                    self._pause(error)
                    return
                continue  # this client has gone
            if self._door.has_too_many(len(self._connections) + 1):
                self._surplus.take(connection, "connections")
            elif not self._door.has_room(self._begun + self._begun_before):
                self._surplus.take(
                    connection, "busy"
                )  # far cheaper here than when its request has been parsed
            else:
                self._begun += 1
                self._begin(connection)

    def _let_in(self, connection: socket.socket, path: bytes) -> bool:
        if not self._open:
            return False
        if self._door.has_few(path, self._few[path] + 1):
            self._few[path] += 1
        elif self._door.has_room(self._begun + self._begun_before):  # by now
            self._begun += 1
        else:
            return False
        self._begin(connection)
        return True

    def _next_turn(self) -> None:
        """Forget whose requests have come by now, or will not soon: the door counts those that wait."""
        self._begun_before, self._begun = self._begun, 0
        self._few.clear()
        self._turn = self._loop.call_soon(self._next_turn) if self._begun_before else None

    def _pause(self, error: OSError) -> None:
        _log.warning("connections have to wait: %s", error.strerror)
        self._loop.remove_reader(self._listener.fileno())
        self._waiting = self._loop.call_later(_PAUSE_S, self._go_on)

    def _begin(self, connection: socket.socket) -> None:
        if self._turn is None:
            self._turn = self._loop.call_soon(self._next_turn)
        protocol = self._protocol()
        self._connections.add(protocol)
        opening = self._loop.create_task(self._connect(protocol, connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _connect(self, protocol: asyncio.Protocol, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except BaseException as error:
            self._connections.discard(protocol)
            connection.close()
            if not isinstance(error, OSError):
                raise
            _log.debug("a connection was lost before it began: %s", error)
