"""What applications ask for: a session, queues, kernels, and giving buffers back."""

from __future__ import annotations

import os
from importlib.metadata import version
from time import monotonic_ns

from polymux.core.errors import InvalidRequest, ProtocolMismatch
from polymux.core.event import MAX_WEIGHT, NORMAL_WEIGHT
from polymux.core.ids import DeviceId, SessionId, StreamId
from polymux.segment import LAYOUT_VERSION, PROTOCOL_VERSION, Segment, SegmentError
from polymux.server.connection import Peer
from polymux.server.jobs.operations import end_jobs
from polymux.server.kernels import SessionKernels
from polymux.server.parts import Parts
from polymux.server.placement import Key
from polymux.server.reactor import Client
from polymux.server.registration import forget_kernel
from polymux.server.request import Operation, Request
from polymux.server.session import Session, TaskQueue

MAX_SLOT = 65535
MAX_GENERATION = 65535
MAX_OFFSET = 2**46
KEPT_FOR_OTHERS = 8
"""One of so many places for clients is for processes that have none yet, so that one process cannot take them all."""


def client_operations(parts: Parts) -> dict[str, Operation]:
    """Build the table of operations."""
    operations = _ClientOperations(parts)
    return {
        "hello": operations.hello,
        "queue_open": operations.queue_open,
        "queue_close": operations.queue_close,
        "kernel": operations.kernel,
        "release": operations.release,
    }


class _ClientOperations:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def hello(self, request: Request) -> None:
        """Begin a session."""
        client = request.caller
        assert isinstance(client, Client)
        if client.session is not None:
            raise InvalidRequest("this connection has a session already; open another one")
        _check_version("protocol version", request.text("version"), PROTOCOL_VERSION)
        _check_version("segment layout", request.text("layout", str(LAYOUT_VERSION)), LAYOUT_VERSION)
        limits = self._parts.options.limits
        self._check_places(client.peer, limits.max_clients)
        wanted = request.number("segment_nbytes", 0, MAX_OFFSET, 0) or limits.segment_nbytes
        name = request.text("name", "", limit=128) or f"pid {client.peer.pid}"
        weight = request.number("weight", 1, MAX_WEIGHT, NORMAL_WEIGHT)
        session = self._new_session(client, name, min(wanted, limits.max_segment_nbytes), weight)
        fields = {
            "session": session.id,
            "segment_nbytes": session.segment.nbytes,
            "server": version("polymux"),
            "pid": os.getpid(),
            "devices": ",".join(device.id for device in self._parts.machine.devices),
        }
        request.answer(fields, [session.segment.fd])

    def queue_open(self, request: Request) -> None:
        """Open a queue whose ring lies in the session's segment."""
        session = request.session
        device, stream = self._pin(request.text("device", ""))
        priority = request.number("priority", -(2**31), 2**31 - 1, 0)
        memory_nbytes = request.number("memory_nbytes", 0, MAX_OFFSET, 0)
        name = request.text("name", "", limit=128)
        try:
            index = session.segment.open_queue(
                request.number("offset", 0, MAX_OFFSET), request.number("capacity", 0, 2**31)
            )
        except SegmentError as error:
            raise InvalidRequest(str(error)) from None
        queue_id = session.queue_id(index)
        task_queue = TaskQueue(
            queue_id,
            session,
            index,
            name or queue_id,
            priority,
            device,
            monotonic_ns(),
            memory_nbytes,
            stream,
        )
        session.queues[index] = task_queue

        def done(refused: str | None) -> None:
            if refused is None:
                request.answer({"index": index, "queue": queue_id})
            else:
                request.fail(InvalidRequest(refused))

        self._parts.scheduler.open(task_queue, done)

    def queue_close(self, request: Request) -> None:
        """Close a queue; answered when no thread looks at its ring any more."""
        index = request.number("index", 0, 255)
        task_queue = request.session.queues.get(index)
        if task_queue is None:
            raise InvalidRequest(f"this session has no open queue {index}")
        self._parts.scheduler.close(task_queue, request.answer)

    def kernel(self, request: Request) -> None:
        """Look a kernel up by name."""
        session, name = request.session, request.text("name")
        kernel = session.kernels.by_name(name)
        if kernel is None:
            like = session.kernels.names_like(name)
            remedy = f"did you mean {', '.join(like)}?" if like else "see 'polymux kernels'"
            raise UnknownNameError(f"there is no kernel {name!r}; {remedy}")
        request.answer({"kernel_id": kernel.id, "spec": kernel.spec.to_text()})

    def release(self, request: Request) -> None:
        """Give back the device memory of a freed buffer; answered when its bytes of the segment are free."""
        session = request.session
        key = Key(session.id, request.number("slot", 0, MAX_SLOT))
        generation = request.number("generation", 0, MAX_GENERATION)
        residency = self._parts.residency
        if not residency.is_moving(key, generation):
            residency.forget(key, generation)
            request.answer()
            return

        def wait() -> None:
            residency.forget_when_still(key, generation)
            request.answer()

        self._parts.later(request, wait)

    def _pin(self, text: str) -> tuple[DeviceId | None, StreamId | None]:
        """Read where a queue has to run: a device, a stream of one, or nowhere in particular."""
        if not text:
            return None, None
        if "/" in text:
            return self._parts.accelerator(text).device.id, StreamId(text)
        known = [device.id for device in self._parts.machine.devices]
        if text not in known:
            raise InvalidRequest(
                f"device {text!r} does not exist; the server has {', '.join(known) or 'none'}"
            )
        return DeviceId(text), None

    def _check_places(self, peer: Peer, places: int) -> None:
        sessions = self._parts.sessions.values()
        if len(sessions) >= places:
            raise InvalidRequest(
                f"the server has {places} clients, its limit; close one, or raise limits.max_clients"
            )
        kept = places // KEPT_FOR_OTHERS
        own = sum(session.peer.pid == peer.pid for session in sessions)
        if own and len(sessions) >= places - kept:
            raise InvalidRequest(
                f"process {peer.pid} has {own} of the server's {places} clients, and the last {kept} places are for"
                " other processes; close one, or raise limits.max_clients"
            )

    def _new_session(self, client: Client, name: str, nbytes: int, weight: int) -> Session:
        try:
            segment = Segment(nbytes)
        except SegmentError as error:
            raise InvalidRequest(str(error)) from None
        session_id = SessionId(self._parts.next_session)
        self._parts.next_session += 1
        kernels = SessionKernels(self._parts.directory)
        limit_nbytes = self._parts.options.limits.worker_nbytes
        session = Session(session_id, name, client.peer, segment, kernels, limit_nbytes, weight)
        self._parts.sessions[session_id] = session
        self._parts.accounts.opened(session_id, name)
        client.session = session
        return session


class UnknownNameError(InvalidRequest):
    """No kernel of that name is registered."""

    wire_code = "UnknownKernel"


def end_session(parts: Parts, session: Session) -> None:
    """See to it that nothing of a client that is gone stays; called in the I/O thread, waits for nothing."""
    parts.sessions.pop(session.id, None)
    parts.accounts.closed(session.id)
    session.owner.ended = True
    end_jobs(parts.jobs, session)
    session.segment.close()
    for process in list(session.workers.values()):
        process.end()
        parts.slow.submit(process, process.close)
    session.workers.clear()
    session.kill_readers()
    for task_queue in list(session.queues.values()):
        parts.scheduler.close(task_queue, _nothing)
    parts.residency.forget_owner(session.owner)
    parts.grants.forget_session(session)
    for kernel in session.kernels.own():
        forget_kernel(parts, kernel)


def _nothing() -> None:
    """Do nothing when a queue has been closed."""


def _check_version(what: str, given: str, own: int) -> None:
    if given != str(own):
        raise ProtocolMismatch(
            f"the client speaks {what} {given[:20]!r}, the server {own}; install the same Polymux on both sides"
        )
