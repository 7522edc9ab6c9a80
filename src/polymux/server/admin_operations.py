"""What the operator asks for: status, devices, kernels, a migration, the end."""

from __future__ import annotations

import contextlib
import os
from time import monotonic_ns

from polymux.core.errors import InvalidRequest, PermissionDenied
from polymux.core.event import MigrateRequested
from polymux.core.ids import DeviceId
from polymux.core.snapshot import Snapshot
from polymux.segment import SegmentError
from polymux.server import status
from polymux.server.parts import Parts
from polymux.server.reactor import Client
from polymux.server.request import Operation, Request
from polymux.server.session import TaskQueue
from polymux.server.status import Describe


def admin_operations(parts: Parts) -> dict[str, Operation]:
    """Build the table of operations."""
    operations = _AdminOperations(parts)
    return {
        "status": operations.status,
        "devices": operations.devices,
        "kernels": operations.kernels,
        "migrate": operations.migrate,
        "down": operations.down,
    }


class _AdminOperations:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def status(self, request: Request) -> None:
        """Describe everything that changes."""
        self._with_snapshot(request, lambda snapshot: status.status(self._parts, snapshot))

    def devices(self, request: Request) -> None:
        """Describe the devices, present and absent."""

        def describe(snapshot: Snapshot) -> status.Json:
            usage = self._parts.residency.usage()
            return {
                "devices": status.devices(self._parts, snapshot, usage),
                "absent": status.absent(self._parts),
            }

        self._with_snapshot(request, describe)

    def kernels(self, request: Request) -> None:
        """Describe the kernels."""
        session = request.caller.session
        self._parts.later(request, lambda: request.answer_json(status.kernels(self._parts, session)))

    def migrate(self, request: Request) -> None:
        """Move a queue to another device; answered when it is bound there."""
        queue_id, device = request.text("queue"), request.text("device")
        task_queue = self._find(queue_id)
        owns = request.caller.session is not None and task_queue.session is request.caller.session
        if not owns:
            self._check_operator(request, "move queues of other applications")
        event = MigrateRequested(task_queue.id, DeviceId(device), 0)
        self._parts.later(request, lambda: self._migrate(request, task_queue, event))

    def _migrate(self, request: Request, queue: TaskQueue, event: MigrateRequested) -> None:
        location = self._parts.machine.locations.get(event.device)
        elsewhere = {slot for slot, (_, where) in _pending_buffers(queue).items() if where != location}
        start_ns = monotonic_ns()

        def answered(ok: bool, message: str) -> None:
            elapsed_ns = monotonic_ns() - start_ns
            if not ok:
                request.fail(InvalidRequest(message))
                return
            follow = [
                nbytes
                for slot, (nbytes, where) in _pending_buffers(queue).items()
                if where != location or slot in elsewhere
            ]
            fields = {
                "message": message,
                "elapsed_ns": elapsed_ns,
                "pending": queue.pending(),
                "nbytes": sum(follow),
                "buffers": len(follow),
            }
            request.answer(fields)

        self._parts.scheduler.ask_to_migrate(
            event, lambda ok, message: self._parts.later(request, lambda: answered(ok, message))
        )

    def down(self, request: Request) -> None:
        """Stop the server."""
        self._check_operator(request, "stop the server")
        self._parts.stop()
        request.answer({"pid": os.getpid()})

    def _with_snapshot(self, request: Request, describe: Describe) -> None:
        parts = self._parts
        parts.scheduler.call(
            lambda snapshot: parts.later(request, lambda: request.answer_json(describe(snapshot)))
        )

    def _find(self, queue_id: str) -> TaskQueue:
        queues = [queue for session in self._parts.sessions.values() for queue in session.queues.values()]
        found = [queue for queue in queues if queue_id == queue.id]
        found = found or [queue for queue in queues if queue_id == queue.name]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(queue.id for queue in found)
            raise InvalidRequest(f"{len(found)} queues are named {queue_id!r}: {ids}; give one of these ids")
        known = ", ".join(f"{queue.id} ({queue.name})" for queue in queues[:8]) or "none"
        raise InvalidRequest(f"queue {queue_id!r} is not open; open queues: {known}")

    def _check_operator(self, request: Request, what: str) -> None:
        client = request.caller
        assert isinstance(client, Client)
        if client.peer.uid not in (0, os.getuid()):
            raise PermissionDenied(f"user {client.peer.uid} may not {what}; ask user {os.getuid()} or root")


def _pending_buffers(queue: TaskQueue) -> dict[int, tuple[int, int]]:
    """(bytes, location) of the buffers of the tasks that are not taken yet, by slot."""
    segment = queue.session.segment
    found = {}
    with contextlib.suppress(SegmentError):  # closed meanwhile
        capacity = segment.counters(queue.index)["capacity"]
        for slot, generation, _ in segment.pending_refs(queue.index, capacity):
            with contextlib.suppress(SegmentError):  # freed meanwhile
                found[slot] = segment.buffer(slot, generation)[1], segment.location(slot)
    return found
