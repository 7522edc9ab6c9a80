"""One client's control socket as the I/O thread sees it: never blocks, closes what it is sent by mistake."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polymux.core.errors import InvalidRequest
from polymux.server.protocol import MAX_DESCRIPTORS, MAX_MESSAGE_NBYTES, carried, carry, encode

BACKLOG_MESSAGES = 256
BACKLOG_NBYTES = 8 << 20
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as the kernel says it."""

    pid: int
    uid: int
    gid: int


class PeerGoneError(Exception):
    """The peer has closed its end, or reads so slowly that its answers pile up."""


class Connection:
    """A non-blocking SOCK_SEQPACKET socket. Used by the I/O thread only.

    Parameters
    ----------
    sock : socket.socket
        Connected; owned from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._backlog: deque[tuple[bytes, list[int]]] = deque()
        self._backlog_nbytes = 0
        sock.setblocking(False)
        _enlarge_send_buffer(sock)
        self.peer = Peer(
            *_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        )

    def fileno(self) -> int:
        """Descriptor of the socket, -1 once closed."""
        return self._socket.fileno()

    @property
    def wants_to_send(self) -> bool:
        """Whether answers wait for the peer to read."""
        return bool(self._backlog)

    def receive(self) -> tuple[bytes, list[int]] | None:
        """Take the next message.

        Returns
        -------
        (data, descriptors) or None
            None when nothing is there. The caller closes the descriptors.

        Raises
        ------
        PeerGoneError
            The peer has closed its end.
        InvalidRequest
            The message is too long or brings too many descriptors; those are closed.
        """
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                MAX_MESSAGE_NBYTES, socket.CMSG_SPACE(MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise PeerGoneError(str(error)) from None
        descriptors = _descriptors(ancillary)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(descriptors)
            raise InvalidRequest(
                f"the message has more than {MAX_MESSAGE_NBYTES} bytes or {MAX_DESCRIPTORS} descriptors;"
                " send long values in a memfd"
            )
        if not data:
            close_all(descriptors)
            raise PeerGoneError("closed by the peer")
        try:
            return carried(data, descriptors), descriptors
        except InvalidRequest:
            close_all(descriptors)
            raise

    def send(self, head: str, fields: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send a message now or, when the peer does not read, as soon as it does.

        Parameters
        ----------
        descriptors : sequence of int
            Sent along; stay the caller's.

        Raises
        ------
        PeerGoneError
            The peer has closed its end or left more than `BACKLOG_MESSAGES` answers unread.
        """
        data = encode(head, fields)
        owned = [os.dup(descriptor) for descriptor in descriptors]
        in_memfd = carry(data)
        if in_memfd is not None:
            data = in_memfd[0]
            owned.insert(0, in_memfd[1])
        self._backlog.append((data, owned))
        self._backlog_nbytes += len(data)
        self.flush()
        if len(self._backlog) > BACKLOG_MESSAGES or self._backlog_nbytes > BACKLOG_NBYTES:
            raise PeerGoneError(f"the client left {len(self._backlog)} answers unread")

    def flush(self) -> None:
        """Send what waits, as far as the peer reads.

        Raises
        ------
        PeerGoneError
            The peer has closed its end.
        """
        while self._backlog:
            data, descriptors = self._backlog[0]
            try:
                self._socket.sendmsg([data], _rights(descriptors), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as error:
                raise PeerGoneError(str(error)) from None
            self._backlog.popleft()
            self._backlog_nbytes -= len(data)
            close_all(descriptors)

    def close(self) -> None:
        """Close the socket and whatever still waits to be sent. Twice is fine."""
        self._socket.close()
        while self._backlog:
            close_all(self._backlog.popleft()[1])


def close_all(descriptors: Sequence[int]) -> None:
    """Close every descriptor."""
    for descriptor in descriptors:
        os.close(descriptor)


def _rights(descriptors: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    received = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return list(received)


def _enlarge_send_buffer(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # best effort: the system's limit is enough for every message
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
