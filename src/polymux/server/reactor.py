"""The I/O thread: accepts connections, reads requests, sends answers, and notices when a client is gone.

Nothing here waits for a client or for anything but the sockets: an operation that takes longer answers later, from
another thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from polymux.core.errors import InvalidRequest, PolymuxError
from polymux.server.connection import Connection, Peer, PeerGoneError, close_all
from polymux.server.protocol import decode
from polymux.server.request import Operation, Request
from polymux.server.session import Session

MESSAGES_AT_ONCE = 32
"""Requests that one connection gets through before the others have their turn."""
MAX_MISTAKES = 8
"""Malformed messages until a connection is dropped."""
MAX_CONNECTIONS = 512
"""When there are more, the oldest of those that never said hello goes."""


class Client:
    """A connection and what belongs to it; `session` is set by hello."""

    def __init__(self, reactor: Reactor, connection: Connection) -> None:
        self._reactor = reactor
        self.connection = connection
        self.session: Session | None = None
        self.mistakes = 0

    @property
    def peer(self) -> Peer:
        """Who is at the other end."""
        return self.connection.peer

    def answer(self, head: str, fields: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send an answer, from any thread."""
        self._reactor.send(self, head, fields, descriptors)


class Reactor:
    """The loop.

    Parameters
    ----------
    operations : mapping of str to Operation
    gone : callable
        Told that a client is gone, in this thread; its connection is closed already.
    """

    def __init__(self, operations: Mapping[str, Operation], gone: Callable[[Client], None]) -> None:
        self._operations = operations
        self._gone = gone
        self._selector = selectors.DefaultSelector()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._calls: deque[Callable[[], None]] = deque()
        self._clients: dict[Client, None] = {}  # the oldest first
        self._ending = False
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="polymux-io", daemon=True)

    # ---- from any thread ----

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Close all connections and end the thread."""
        self.call(self._end)
        self._thread.join()

    def close(self) -> None:
        """Give back the descriptors of a loop that has ended, or never ran."""
        self._selector.close()
        os.close(self._bell)
        os.close(self._spare)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the I/O thread."""
        self._calls.append(function)
        os.eventfd_write(self._bell, 1)

    def listen(self, sock: socket.socket) -> None:
        """Accept connections from a listening socket, which stays the caller's."""
        self.call(lambda: self._register(sock, lambda: self._accept(sock)))

    def stop_listening(self, sock: socket.socket) -> None:
        """Accept no more; returns when the thread has let go of the socket."""
        done = threading.Event()

        def stop() -> None:
            self._selector.unregister(sock)
            done.set()

        self.call(stop)
        done.wait()

    def adopt(self, sock: socket.socket) -> None:
        """Serve a connected socket."""
        self.call(lambda: self._adopt(sock))

    def send(
        self, client: Client, head: str, fields: Mapping[str, object], descriptors: Sequence[int] = ()
    ) -> None:
        """Send a message to a client; one that is gone by then does not get it."""
        if threading.current_thread() is self._thread:
            self._send(client, head, fields, descriptors)
            return
        kept = [os.dup(descriptor) for descriptor in descriptors]

        def send() -> None:
            try:
                self._send(client, head, fields, kept)
            finally:
                close_all(kept)

        self.call(send)

    def drop_session(self, session: Session) -> None:
        """Close the connection of a session."""

        def drop() -> None:
            for client in [client for client in self._clients if client.session is session]:
                self._drop(client)

        self.call(drop)

    # ---- in the thread ----

    def _run(self) -> None:
        while not self._ending:
            self._turn()

    def _turn(self) -> None:
        """Serve what is ready; nothing of it is kept, since it may keep a session alive."""
        for key, events in self._selector.select():
            if key.data is None:
                self._make_calls()
            elif isinstance(key.data, Client):
                self._serve(key.data, events)
            else:
                key.data()

    def _make_calls(self) -> None:
        os.eventfd_read(self._bell)
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:  # a defect must not end the thread that serves everybody
                traceback.print_exc()

    def _end(self) -> None:
        for client in list(self._clients):
            self._drop(client)
        self._ending = True

    def _register(self, sock: socket.socket, data: Callable[[], None]) -> None:
        self._selector.register(sock, selectors.EVENT_READ, data)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._refuse(listener)
            return  # otherwise it went away before its turn
        if len(self._clients) >= MAX_CONNECTIONS:
            idle = next((client for client in self._clients if client.session is None), None)
            if idle is None:
                sock.close()
                return
            self._drop(idle)
        self._adopt(sock)

    def _refuse(self, listener: socket.socket) -> None:
        """Close a connection that no descriptor is left for, with the one kept for this, instead of spinning."""
        os.close(self._spare)
        with contextlib.suppress(OSError):
            listener.accept()[0].close()
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _adopt(self, sock: socket.socket) -> None:
        client = Client(self, Connection(sock))
        self._clients[client] = None
        self._selector.register(client.connection, selectors.EVENT_READ, client)

    def _serve(self, client: Client, events: int) -> None:
        if client not in self._clients:  # dropped by an earlier event of this turn
            return
        try:
            if events & selectors.EVENT_WRITE:
                client.connection.flush()
                self._watch(client)
            if events & selectors.EVENT_READ:
                self._read(client)
        except PeerGoneError:
            self._drop(client)

    def _read(self, client: Client) -> None:
        for _ in range(MESSAGES_AT_ONCE):
            if client not in self._clients:
                return
            try:
                received = client.connection.receive()
                if received is None:
                    return
                data, descriptors = received
                close_all(descriptors)  # no operation takes any
                request = Request(client, decode(data))
            except InvalidRequest as error:
                self._mistake(client, error)
                continue
            self._carry_out(request)

    def _mistake(self, client: Client, error: InvalidRequest) -> None:
        client.mistakes += 1
        self._send(client, "error", {"code": "InvalidRequest", "message": str(error)})
        if client.mistakes >= MAX_MISTAKES:
            self._drop(client)

    def _carry_out(self, request: Request) -> None:
        operation = self._operations.get(request.operation)
        try:
            if operation is None:
                known = ", ".join(sorted(self._operations))
                raise InvalidRequest(f"operation {request.operation!r} is unknown; there are {known}")
            operation(request)
        except PolymuxError as error:
            request.fail(error)
        except Exception as error:
            traceback.print_exc()
            request.fail(error)

    def _send(
        self, client: Client, head: str, fields: Mapping[str, object], descriptors: Sequence[int] = ()
    ) -> None:
        if client not in self._clients:
            return
        try:
            client.connection.send(head, fields, descriptors)
        except PeerGoneError:
            self._drop(client)
            return
        self._watch(client)

    def _watch(self, client: Client) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.connection.wants_to_send else 0)
        if self._selector.get_key(client.connection).events != wanted:
            self._selector.modify(client.connection, wanted, client)

    def _drop(self, client: Client) -> None:
        if client not in self._clients:
            return
        del self._clients[client]
        self._selector.unregister(client.connection)
        client.connection.close()
        self._gone(client)
