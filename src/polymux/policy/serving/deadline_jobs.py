"""The first pass of D-STACK: jobs that run each model once within its SLO, planned earliest deadline first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polymux.core.serving.model import ModelName, ServedModel
from polymux.core.serving.view import DeviceState, ModelState, ServingView
from polymux.policy.serving.operating_point import SECOND_NS, Candidate, expected_end_ns
from polymux.policy.serving.settled import NEVER_NS
from polymux.policy.serving.timeline import Timeline

_MOST_WINDOWS = 16
"""Deadline jobs of one model in a session; models with a shorter SLO leave the rest to the second pass."""
_MOST_JOBS = 64
"""Jobs that are planned, the most urgent ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One run of a model in one of its windows.

    Parameters
    ----------
    model : ModelName
    release_ns, due_ns : int
        The window.
    units : int
    run_ns : int
    """

    model: ModelName
    release_ns: int
    due_ns: int
    units: int
    run_ns: int


class DeadlineJobs:
    """The deadline jobs of one device, of this session and the next."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._of: dict[ModelName, list[Job]] = {}
        self._longest_ns = 0
        self._plan: Plan | None = None

    def add_session(
        self, models: Iterable[tuple[ServedModel, int, int]], begin_ns: int, length_ns: int, now: int
    ) -> None:
        """Add the jobs of a session: of models with the units and the time in ns of one run of each."""
        jobs = [job for job in self._jobs if job.due_ns - job.run_ns >= now]
        for model, units, run_ns in models:
            slo_ns = model.slo_ns
            for index in range(min(length_ns // slo_ns, _MOST_WINDOWS)):
                release_ns = begin_ns + index * slo_ns
                jobs.append(Job(model.name, release_ns, release_ns + slo_ns, units, run_ns))
        jobs.sort(key=lambda job: (job.due_ns, job.release_ns))
        self._jobs, self._of = jobs, {}
        for job in jobs:
            self._of.setdefault(job.model, []).append(job)
        self._longest_ns = max((job.run_ns for job in jobs), default=0)

    def own(self, model: ModelName, now: int) -> Job | None:
        """Job of a model in whose window `now` is."""
        jobs = self._of.get(model, ())
        return next((job for job in jobs if job.release_ns <= now < job.due_ns), None)

    def remove(self, job: Job) -> None:
        """Take a job out that has been started."""
        self._jobs.remove(job)
        self._of[job.model].remove(job)

    def next_ns(self, now: int) -> int:
        """When the last plan has something start, or a job can no longer be done and makes way; far off for none."""
        plan = self._plan
        if plan is None:
            return NEVER_NS
        times = [start_ns for start_ns in plan.starts.values() if start_ns > now]
        times += [job.due_ns - job.run_ns + 1 for job in plan.jobs if job.due_ns - job.run_ns >= now]
        return min(times, default=NEVER_NS)

    def plan(self, view: ServingView, device: DeviceState, now: int) -> Plan:
        """Plan the most urgent jobs that can still be done.

        Those whose window begins after twice the longest run are left for later: what starts now is over by then, and
        what it delays too.
        """
        models, until_ns = view.models, now + 2 * self._longest_ns
        jobs: list[Job] = []
        for job in self._jobs:
            state = models.get(job.model)
            if state is None or job.release_ns >= until_ns or job.due_ns - job.run_ns < now:
                continue
            if may_have_requests(state, job, now):
                jobs.append(job)
                if len(jobs) == _MOST_JOBS:
                    break
        timeline = Timeline(device.spec.units, now)
        last: dict[ModelName, int] = {}
        for batch in device.running.values():
            state = models.get(batch.model)
            end_ns = expected_end_ns(batch, state.model.slo_ns if state else 1, now)
            timeline.add(batch.units, now, end_ns)
            last[batch.model] = end_ns
        self._plan = Plan(jobs, timeline, last, now)
        return self._plan


class Plan:
    """Jobs at the earliest times at which they fit, earliest deadline first.

    Parameters
    ----------
    jobs : sequence of Job
        By their deadlines.
    running : Timeline
        What runs.
    last : mapping of ModelName to int, ns
        When the running batch of each model ends.
    now : int

    Attributes
    ----------
    starts : dict of Job to int, ns
        When each starts; -1: it cannot be done.
    """

    def __init__(
        self, jobs: Sequence[Job], running: Timeline, last: Mapping[ModelName, int], now: int
    ) -> None:
        self.jobs = jobs
        self._now = now
        self._running = running
        self._last = last
        self._planned = running.copy()
        starts = _place(jobs, self._planned, last, now)
        self._lost = starts.count(-1)
        self.starts = dict(zip(jobs, starts, strict=True))

    def with_reserved(
        self, candidate: Candidate, jobs: DeadlineJobs, *, whatever_is_lost: bool
    ) -> Plan | None:
        """Plan the same with a batch at the earliest time after now at which no more jobs are lost; None: at none."""
        for end_ns in self._running.changes():
            start_ns = self._running.earliest(candidate.units, candidate.run_ns, end_ns)
            if start_ns != end_ns:
                continue
            own = jobs.own(candidate.name, start_ns)
            others = [job for job in self.jobs if job is not own]
            running = self._running.copy()
            running.add(candidate.units, start_ns, start_ns + candidate.run_ns)
            last = {**self._last, candidate.name: start_ns + candidate.run_ns}
            plan = Plan(others, running, last, self._now)
            if whatever_is_lost or plan._lost <= self._lost:
                return plan
        return None

    def has_room(self, units: int, run_ns: int, own: Job | None, now: int) -> bool:
        """Whether something fits now beside everything that is planned, but for the model's own job."""
        start_ns = -1 if own is None else self.starts.get(own, -1)
        if own is None or start_ns < 0:
            return self._planned.fits(units, now, now + run_ns)
        self._planned.add(-own.units, start_ns, start_ns + own.run_ns)
        fits = self._planned.fits(units, now, now + run_ns)
        self._planned.add(own.units, start_ns, start_ns + own.run_ns)
        return fits

    def still_possible(self, candidate: Candidate, own: Job | None, now: int) -> bool:
        """Whether no more jobs are lost than before if something starts now, which then is the model's own job."""
        timeline = self._running.copy()
        if not timeline.fits(candidate.units, now, now + candidate.run_ns):
            return False
        end_ns = now + candidate.run_ns
        timeline.add(candidate.units, now, end_ns)
        others = [job for job in self.jobs if job is not own]
        starts = _place(others, timeline, {**self._last, candidate.name: end_ns}, now)
        return starts.count(-1) <= self._lost


def may_have_requests(state: ModelState, job: Job, now: int) -> bool:
    """Whether requests wait for a job, or at least one should come in time for it."""
    if state.waiting:
        return True
    rate = max(state.rate_per_s, state.model.rate_per_s)
    return rate * (job.due_ns - job.run_ns - now) >= SECOND_NS


def _place(jobs: Sequence[Job], timeline: Timeline, last: Mapping[ModelName, int], now: int) -> list[int]:
    """Put jobs on a timeline, one after the other; where each starts, -1 where it does not fit."""
    starts = []
    ends = dict(last)
    for job in jobs:
        from_ns = max(job.release_ns, now, ends.get(job.model, now))
        start_ns = timeline.put(job.units, job.run_ns, from_ns, job.due_ns)
        if start_ns is None:
            starts.append(-1)
            continue
        starts.append(start_ns)
        ends[job.model] = start_ns + job.run_ns
    return starts
