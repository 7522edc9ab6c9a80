"""Whose turn it is among jobs, and the tasks of devices, of one priority: start-time fair queuing, by weight."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.ids import DeviceId
from polymux.core.jobs.model import JobId
from polymux.core.jobs.view import JobDeviceState, JobState, JobView


class FairQueue:
    """Tags of jobs and of the tasks of each device: the one with the least has had least device time for its weight.

    Whoever comes, or has had nothing to do, starts at the virtual time of his priority: what he did not use is not
    saved up. The tasks of a device are one party for each priority that they have had.

    Parameters
    ----------
    by_priority : bool
        Whether each priority has a time of its own; else all are alike.

    References
    ----------
    Goyal, Vin, Cheng: Start-time Fair Queuing. SIGCOMM 1996. On several devices: Jin, Chase, Kaur: SFQ(D),
    SIGMETRICS 2004.
    """

    def __init__(self, *, by_priority: bool = True) -> None:
        self._by_priority = by_priority
        self._jobs: dict[JobId, _Entry] = {}
        self._tasks: dict[tuple[DeviceId, int], _Entry] = {}
        self._now: dict[DeviceId, tuple[int, int, int]] = {}
        """Of a device's tasks: their line, how long they have had the device so far, and with which weight."""
        self._virtual: dict[int, float] = {}

    def update(self, view: JobView, now: int) -> None:
        """Charge everybody what he used, and let those in that have work again."""
        self._forget(view)
        for name, job in view.jobs.items():
            used_ns = job.used_ns(now)
            entry = self._jobs.get(name)
            if entry is None:
                entry = self._jobs[name] = _Entry(self.line(job.spec.priority), used_ns)
            entry.charge(used_ns - entry.used_ns, job.spec.weight)
            entry.used_ns = used_ns
        for device in view.devices.values():
            self._charge_tasks(device, now)
        self._advance()
        for name, job in view.jobs.items():
            self._join(self._jobs[name], job.wants)
        for device in view.devices.values():
            self._join(self._tasks[device.spec.id, self.line(device.tasks_priority)], device.tasks)

    def tag(self, job: JobState) -> float:
        """Device time that a job has had, in ns of one with weight 100."""
        return self._jobs[job.spec.id].tag

    def tag_of_tasks(self, device: JobDeviceState) -> float:
        """Device time that the tasks of a device have had, of the priority that they have now."""
        return self._tasks[device.spec.id, self.line(device.tasks_priority)].tag

    def line(self, priority: int) -> int:
        """Whose tags are compared with each other: those of one line."""
        return priority if self._by_priority else 0

    def _charge_tasks(self, device: JobDeviceState, now: int) -> None:
        """Charge them as tasks of the priority and weight that they had until now."""
        name, used_ns = device.spec.id, device.tasks_held_ns(now)
        line = self.line(device.tasks_priority)
        before, used_before_ns, weight = self._now.get(name, (line, used_ns, device.tasks_weight))
        entry = self._tasks.get((name, before))
        if entry is not None:
            entry.charge(used_ns - used_before_ns, weight)
            entry.active = entry.active and before == line
        self._now[name] = line, used_ns, device.tasks_weight
        if (name, line) not in self._tasks:
            self._tasks[name, line] = _Entry(line)

    def _advance(self) -> None:
        least: dict[int, float] = {}
        for entries in (self._jobs.values(), self._tasks.values()):
            for entry in entries:
                if entry.active and entry.tag < least.get(entry.line, float("inf")):
                    least[entry.line] = entry.tag
        for line, tag in least.items():
            self._virtual[line] = max(self._virtual.get(line, 0.0), tag)

    def _join(self, entry: _Entry, active: bool) -> None:
        if active and not entry.active:
            entry.tag = max(entry.tag, self._virtual.get(entry.line, 0.0))
        entry.active = active

    def _forget(self, view: JobView) -> None:
        """Forget who is gone, and tasks of priorities that there are none of now, unless they had more than others."""
        for name in [name for name in self._jobs if name not in view.jobs]:
            del self._jobs[name]
        for key, entry in list(self._tasks.items()):
            known = key[0] in view.devices and self._now.get(key[0], (None, 0, 0))[0] == entry.line
            if not known and not entry.tag > self._virtual.get(entry.line, 0.0):
                del self._tasks[key]


@dataclass(slots=True)
class _Entry:
    line: int
    used_ns: int = 0
    tag: float = 0.0
    active: bool = False

    def charge(self, time_ns: int, weight: int) -> None:
        """Charge device time."""
        if time_ns > 0:
            self.tag += time_ns * 100 / weight
