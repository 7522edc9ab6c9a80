"""When the tasks of a device have had more than their part, and jobs have it until they have caught up."""

from __future__ import annotations

from math import ceil

from polymux.core.ids import DeviceId
from polymux.core.jobs.view import JobDeviceState, JobState, JobView
from polymux.policy.jobs.fair_queue import FairQueue
from polymux.policy.jobs.levels import MS

_LEAST_NS = 100 * MS
"""Of device time that whoever has less of it by weight is given at once: more changes cost more than they help."""


class TaskTurns:
    """Device time by weight between the tasks of a device and the jobs that it competes with.

    Tasks come first and may run ahead of their part, as requests do that come in bursts, up to a bound. At the bound
    they are held until the job that is furthest behind has caught up by a turn.

    Parameters
    ----------
    queue : FairQueue
        Up to date whenever this is asked.
    ahead_ns : int, ns
        How far tasks may run ahead, in device time at weight 100.
    """

    def __init__(self, queue: FairQueue, ahead_ns: int) -> None:
        self._queue = queue
        self._ahead_ns = ahead_ns
        self._held: dict[DeviceId, int] = {}

    def update(self, view: JobView, now: int) -> None:
        """Let those tasks go on that have been held long enough, or for which no job waits any more."""
        for name, line in list(self._held.items()):
            device = view.devices[name]  # a pause of its tasks changes nothing
            same = self._queue.line(device.tasks_priority) == line
            behind = self._furthest_behind(view, device) if same else None
            if behind is None or self.serve_at_ns(behind, device, now) <= now:
                del self._held[name]

    def held(self, device: JobDeviceState) -> bool:
        """Whether the tasks of a device wait for jobs that they compete with to catch up."""
        return device.spec.id in self._held

    def hold(self, device: JobDeviceState) -> None:
        """Note that they are held from now on."""
        self._held[device.spec.id] = self._queue.line(device.tasks_priority)

    def release(self, device: JobDeviceState) -> None:
        """Note that no job can have the device after all."""
        self._held.pop(device.spec.id, None)

    def hold_at_ns(self, job: JobState, device: JobDeviceState, now: int) -> int:
        """When tasks that run will have had so much that a job comes first; not later than `now`: it does."""
        room = self._ahead_ns - self._lead(job, device)
        return now + ceil(max(0.0, room) * device.tasks_weight / 100)

    def serve_at_ns(self, job: JobState, device: JobDeviceState, now: int) -> int:
        """When a job that has the device will have caught up enough; not later than `now`: it has."""
        grain = _LEAST_NS * 100 / min(job.spec.weight, device.tasks_weight)
        missing = self._lead(job, device) - (self._ahead_ns - grain)
        return now + ceil(max(0.0, missing) * job.spec.weight / 100)

    def next_serve_ns(self, view: JobView, device: JobDeviceState, now: int) -> int | None:
        """When tasks that are held should be looked at again; None: no job competes with them."""
        behind = self._furthest_behind(view, device)
        return None if behind is None else self.serve_at_ns(behind, device, now)

    def _lead(self, job: JobState, device: JobDeviceState) -> float:
        return self._queue.tag_of_tasks(device) - self._queue.tag(job)

    def _furthest_behind(self, view: JobView, device: JobDeviceState) -> JobState | None:
        """Find the job of theirs that has had least, of those that have the device or could."""
        line = self._queue.line
        jobs = [
            job
            for job in view.jobs.values()
            if job.wants
            and line(job.spec.priority) == line(device.tasks_priority)
            and job.device in (None, device.spec.id)
            and any(device is usable for usable in view.usable(job))
        ]
        return min(jobs, key=self._queue.tag, default=None)
