"""Devices change hands between runs: sessions take turns, as Gandiva and the paper's baseline do."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import ClassVar, Self

from polymux.core.decision import WakeAt
from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.jobs.decision import Grant, HoldTasks, JobPolicyDecision, LetTasksRun
from polymux.core.jobs.event import JobEvent
from polymux.core.jobs.model import JobId
from polymux.core.jobs.view import JobDeviceState, JobState, JobView
from polymux.policy.jobs.fair_queue import FairQueue
from polymux.policy.jobs.levels import MS, take_back
from polymux.policy.jobs.task_turns import TaskTurns

_SLICE_MS = 100
_PATIENCE_NS = 10_000 * MS
"""Time that a job is given to end its run, if nothing else is known."""


class TimeSlicing:
    """Jobs and tasks take turns at whole runs, whatever their priority; ``time_slicing=MS`` gives the slice of a job.

    A job stays on the device that it was given first. When its slice is over and another waits, it gives way at the end
    of its run, to the one that had least device time for its weight; when tasks wait, at the end of any run, unless
    they have had a slice more than their part by weight.

    References
    ----------
    Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018.
    """

    exclusive: ClassVar[bool] = True

    def __init__(self, slice_ns: int = _SLICE_MS * MS) -> None:
        self._slice_ns = slice_ns
        self._queue = FairQueue(by_priority=False)
        self._task_turns = TaskTurns(self._queue, slice_ns)
        self._places: dict[JobId, DeviceId] = {}

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy."""
        if not option:
            return cls()
        try:
            slice_ms = float(option)
        except ValueError:
            slice_ms = 0.0
        if not 1 <= slice_ms <= 60_000:
            raise InvalidRequest(
                f"job policy 'time_slicing': {option!r} is no slice; give milliseconds from 1 to 60000"
            )
        return cls(round(slice_ms * MS))

    def decide(self, view: JobView, event: JobEvent, now: int) -> Sequence[JobPolicyDecision]:  # noqa: ARG002
        """Give each device to whose turn it is."""
        self._queue.update(view, now)
        self._task_turns.update(view, now)
        self._places = {name: place for name, place in self._places.items() if name in view.jobs}
        decisions: list[JobPolicyDecision] = []
        for device in view.devices.values():
            found = self._decide(view, device, now)
            if found and not isinstance(found[0], WakeAt):
                return found
            decisions += found
        return decisions

    def _decide(self, view: JobView, device: JobDeviceState, now: int) -> list[JobPolicyDecision]:
        name = device.spec.id
        holder = view.jobs[device.holders[0]] if device.holders else None
        held = self._task_turns.held(device)
        if device.tasks_wait and not held:
            return [LetTasksRun(name, "their turn")] if holder is None else self._end_run(holder, device)
        waiting = [job for job in view.jobs.values() if job.wants and job.device is None]
        waiting = [job for job in waiting if self._place(view, job) == name]
        waiting.sort(key=self._queue.tag)
        first = next((job for job in waiting if view.has_room(job, device)), None)
        if device.tasks_run:
            return [] if first is None else self._hold(first, device, now)
        if holder is None and first is not None:
            return [Grant(first.spec.id, name, "its turn")]
        if holder is None:
            self._task_turns.release(device)
            return [LetTasksRun(name, "their turn")] if device.tasks_wait else []
        serve_ns = self._task_turns.next_serve_ns(view, device, now) if held else None
        wake = [] if serve_ns is None else [WakeAt(max(now + 1, serve_ns), "the turn of tasks")]
        return [*self._slice(waiting, holder, device, now), *wake]

    def _hold(self, first: JobState, device: JobDeviceState, now: int) -> list[JobPolicyDecision]:
        """Have the tasks that run give way to a job once they have had a slice, and one more than their part."""
        if device.tasks_leaving:
            return []
        slice_end_ns = device.let_in_ns + self._slice_ns
        at_ns = max(slice_end_ns, self._task_turns.hold_at_ns(first, device, now))
        if at_ns > now:
            return [WakeAt(at_ns, "the end of the slice of tasks")]
        self._task_turns.hold(device)
        return [HoldTasks(device.spec.id, f"the turn of {first.spec.name!r}")]

    def _slice(
        self, waiting: Sequence[JobState], holder: JobState, device: JobDeviceState, now: int
    ) -> list[JobPolicyDecision]:
        """Look whether the slice of the job that has the device is over."""
        if not waiting or holder.leaving is not None:
            return []
        ahead = self._queue.tag(waiting[0]) - self._queue.tag(holder)
        end_ns = holder.since_ns + self._slice_ns
        if ahead < 0 and now >= end_ns:
            return self._end_run(holder, device)
        level_ns = now + 1 + ceil(max(ahead, 0.0) * holder.spec.weight / 100)
        return [WakeAt(max(end_ns, level_ns), "the end of a slice")]

    def _end_run(self, holder: JobState, device: JobDeviceState) -> list[JobPolicyDecision]:
        if holder.leaving is not None:
            return []
        level = holder.spec.levels_on(device.spec)[0]
        return [take_back(holder, device, level, _PATIENCE_NS, "another's turn")]

    def _place(self, view: JobView, job: JobState) -> DeviceId | None:
        """Device on which a job takes its turns: where there is memory, and the jobs so far have the least weight."""
        devices = list(view.usable(job))
        roomy = [device for device in devices if device.holders or view.has_room(job, device)]
        usable = [device.spec.id for device in roomy or devices]
        name = job.spec.id
        if self._places.get(name) not in usable:
            self._places.pop(name, None)
            weights = dict.fromkeys(usable, 0)
            for other, place in self._places.items():
                if place in weights:
                    weights[place] += view.jobs[other].spec.weight
            if usable:
                self._places[name] = min(usable, key=weights.__getitem__)
        return self._places.get(name)
