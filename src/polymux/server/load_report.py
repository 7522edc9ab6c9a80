"""Counts what streams, queues and devices did, for the policies."""

from __future__ import annotations

from collections.abc import Collection

from polymux.core.event import DeviceLoad, LoadReported, QueueLoad, StreamLoad
from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.server.accelerator import Accelerator
from polymux.server.machine import Machine
from polymux.server.measurement import Measurements
from polymux.server.placement import HOST
from polymux.server.residency import Residency
from polymux.server.session import TaskQueue

NOTHING = {"tasks": 0, "busy_ns": 0}


class LoadReporter:
    """Makes load reports; used by the scheduler thread.

    Parameters
    ----------
    machine : Machine
    residency : Residency
    measurements : Measurements
    """

    def __init__(self, machine: Machine, residency: Residency, measurements: Measurements) -> None:
        self._machine = machine
        self._residency = residency
        self._measurements = measurements
        self._names = {
            location: str(device) for device, location in machine.locations.items() if location != HOST
        }
        self._names[HOST] = "host"
        self._stream_busy_ns: dict[StreamId, int] = {}
        self._totals: dict[QueueId, tuple[int, int]] = {}

    def report(self, accelerators: Collection[Accelerator], queues: Collection[TaskQueue]) -> LoadReported:
        """Say what happened since the last call; O(streams + queues)."""
        running: dict[str, dict[str, int]] = {}
        loads: dict[StreamId, StreamLoad] = {}
        pending = {task_queue.id: task_queue.pending() for task_queue in queues}
        for accelerator in accelerators:
            stream, stats, bound = accelerator.spec.id, accelerator.worker.stats(), accelerator.queues()
            running.update(stats["queues"])
            busy_ns = stats["busy_ns"]
            loads[stream] = StreamLoad(
                sum(pending.get(task_queue.id, 0) for task_queue in bound),
                busy_ns - self._stream_busy_ns.get(stream, 0),
                len(bound),
            )
            self._stream_busy_ns[stream] = busy_ns
        return LoadReported(loads, self._queue_loads(queues, running, pending), self._device_loads())

    def _queue_loads(
        self, queues: Collection[TaskQueue], running: dict[str, dict[str, int]], pending: dict[QueueId, int]
    ) -> dict[QueueId, QueueLoad]:
        footprints = self._residency.footprints()
        loads: dict[QueueId, QueueLoad] = {}
        totals: dict[QueueId, tuple[int, int]] = {}
        for task_queue in queues:
            here = running.get(task_queue.id, NOTHING)
            total = (task_queue.tasks + here["tasks"], task_queue.busy_ns + here["busy_ns"])
            before = self._totals.get(task_queue.id, (0, 0))
            # a queue that is let go of at this moment may be counted in neither place; the next report makes up
            tasks, busy_ns = max(0, total[0] - before[0]), max(0, total[1] - before[1])
            totals[task_queue.id] = max(total, before)
            if tasks or busy_ns or pending[task_queue.id]:
                data = {
                    self._names[location]: nbytes
                    for location, nbytes in footprints.get(task_queue.id, {}).items()
                    if location in self._names
                }
                loads[task_queue.id] = QueueLoad(pending[task_queue.id], tasks, busy_ns, data)
        self._totals = totals
        return loads

    def _device_loads(self) -> dict[DeviceId, DeviceLoad]:
        usage = self._residency.usage()
        loads: dict[DeviceId, DeviceLoad] = {}
        for device, location in self._machine.locations.items():
            if location == HOST:
                loads[device] = DeviceLoad(0, 0, 0)
                continue
            into, out = self._measurements.ps_per_byte(location)
            loads[device] = DeviceLoad(usage[location].used_nbytes, into, out)
        return loads
