"""D-STACK: models side by side, each at its knee and at least once within its SLO, what is left divided fairly."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Self

from polymux.core.decision import WakeAt
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import PolicyDecision, RejectRequest, Start
from polymux.core.serving.event import (
    BatchEnded,
    RequestCancelled,
    RequestsArrived,
    ServingEvent,
    ServingTick,
)
from polymux.core.serving.model import ModelName, Request
from polymux.core.serving.view import DeviceState, ModelState, ServingView
from polymux.policy.serving.deadline_jobs import DeadlineJobs, Plan
from polymux.policy.serving.operating_point import SECOND_NS, Candidate, OperatingPoints
from polymux.policy.serving.settled import Settled

SESSIONS = 10
"""How many past sessions count for who had least device time."""
LAG = 2
"""Of its own batches: how far a model may lag before nothing that would delay it is started."""
STARVED = 2
"""Sessions after which a model without a batch no longer stands back for deadline jobs."""
DEADLINES = "deadlines"
_MOST_PLANS = 8
"""Candidates for which the deadline jobs are planned anew in one decision."""


class DStack:
    """D-STACK: models side by side at their knees, each once within its SLO, then the one with least device time.

    Options: ``MODEL:UNITS@BATCH,...`` sets operating points; ``deadlines`` leaves the second, fair pass out.

    Notes
    -----
    A session is as long as the longest SLO. In it every model that has requests is to run once in each of its SLOs:
    the first pass plans these deadline jobs of this session and the next, earliest deadline first, each with the
    batch that its rate collects in an SLO, at the earliest time at which it fits beside what runs and what is
    planned. The second pass starts whatever fits now, least device time over the last ten sessions (relative to the
    weight) first, unless a deadline job could then no longer be planned; a start within the window of the model's own
    deadline job is that job. A model that cannot start and lags two of its own batches behind all that could has the
    earliest possible time reserved, or small shares would fill every gap before a large one fits; and for one that
    has not had a batch for two sessions, deadline jobs make way. Both passes are done again whenever something can
    start. Nothing is refused and nothing interrupted. A model without a surface starts at 30 % of the device and is
    moved to its knee by binary search on what its batches take; it is served on its old share until the new one is
    ready.

    References
    ----------
    Dhakal, Kulkarni, Ramakrishnan, "D-STACK: High Throughput DNN Inference by Effective Multiplexing and
    Spatio-Temporal Scheduling of GPUs".
    """

    def __init__(self, points: OperatingPoints | None = None, *, fair: bool = True) -> None:
        self._points = points or OperatingPoints(searching=True)
        self._fair = fair
        self._jobs: dict[DeviceId, DeadlineJobs] = {}
        self._session_ns = 0
        self._session_end_ns = 0
        self._past: deque[tuple[int, dict[ModelName, int]]] = deque(maxlen=SESSIONS)
        self._started_ns: dict[ModelName, int] = {}
        self._settled = Settled()

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy."""
        if option == DEADLINES:
            return cls(fair=False)
        return cls(OperatingPoints.parse("dstack", option, searching=True))

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:  # noqa: ARG002
        """Admit everything."""
        return None

    def awaits(self, view: ServingView, request: Request, now: int) -> bool:  # noqa: ARG002
        """Look again when a model that had no requests has some."""
        return self._settled.is_upset(request, now)

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        """Start what the two passes choose."""
        self._points.observe(view, event, now)
        if not isinstance(event, RequestsArrived | BatchEnded | ServingTick | RequestCancelled):
            self._session_ns = 0  # other models or devices: plan from the beginning
        held_back = False
        for device in view.devices.values():
            candidates = self._points.candidates(view, device) if device.startable else []
            if any(candidate.startable for candidate in candidates):
                if now >= self._session_end_ns or not self._session_ns:
                    self._begin_session(view, now)
                start = self._choose(candidates, view, device, now)
                if start is not None:
                    self._settled.forget()
                    return [start]
                held_back = True
        return self._settle(view, event, now, held_back=held_back)

    def _settle(
        self, view: ServingView, event: ServingEvent, now: int, *, held_back: bool
    ) -> list[PolicyDecision]:
        """Nothing starts now: say when to look again at what is held back, if nothing happens before."""
        decisions: list[PolicyDecision] = []
        if not isinstance(event, RequestsArrived):
            decisions += self._points.instances.preparations(view, event)
        if held_back:
            times = [self._session_end_ns, *(jobs.next_ns(now) for jobs in self._jobs.values())]
            wake_ns = max(now + 1, min(times))
            decisions.append(WakeAt(wake_ns, "a deadline job or the next session"))
            self._settled.note(view, wake_ns)
        else:
            self._settled.note(view)
        return decisions

    # ---- sessions ----

    def _begin_session(self, view: ServingView, now: int) -> None:
        """Begin the session that `now` is in, and plan the jobs of the next one too."""
        length = max((state.model.slo_ns for state in view.models.values()), default=1)
        follows = length == self._session_ns and now < self._session_end_ns + length
        begin = self._session_end_ns if follows else now
        if not self._past or now - self._past[-1][0] >= length:
            self._past.append((now, {name: state.device_ns for name, state in view.models.items()}))
        if not follows:
            self._jobs = {device: DeadlineJobs() for device in view.devices}
            self._add_jobs(view, begin, length, now)
        self._session_ns, self._session_end_ns = length, begin + length
        self._add_jobs(view, self._session_end_ns, length, now)

    def _add_jobs(self, view: ServingView, begin_ns: int, length_ns: int, now: int) -> None:
        for device_id, jobs in self._jobs.items():
            spec = view.devices[device_id].spec
            models = []
            for state in view.models.values():
                point = self._points.usable(state, spec)
                if point is not None:
                    items = min(point.batch, _collected(state))
                    run_ns = self._points.run_ns(state, spec, point.units, items)
                    models.append((state.model, point.units, run_ns))
            jobs.add_session(models, begin_ns, length_ns, now)

    # ---- the two passes ----

    def _choose(
        self, candidates: list[Candidate], view: ServingView, device: DeviceState, now: int
    ) -> Start | None:
        jobs = self._jobs[device.spec.id]
        plan = jobs.plan(view, device, now)
        if self._fair:
            chosen = self._fair_pass(candidates, jobs, plan, now)
        else:
            due = [job.model for job in plan.jobs if 0 <= plan.starts[job] <= now]
            waiting = [candidate for candidate in candidates if candidate.startable and candidate.name in due]
            chosen = min(waiting, key=lambda candidate: due.index(candidate.name), default=None)
        return None if chosen is None else self._start(chosen, jobs, device, now)

    def _fair_pass(
        self, candidates: list[Candidate], jobs: DeadlineJobs, plan: Plan, now: int
    ) -> Candidate | None:
        ranked = sorted((self._rank(candidate), index) for index, candidate in enumerate(candidates))
        least = min(used for (_, used), index in ranked if candidates[index].startable)
        plans, reserved = 0, False
        for (_, used), index in ranked:
            candidate = candidates[index]
            starved = self._starved(candidate.state, now)
            if candidate.startable:
                own = jobs.own(candidate.name, now)
                if starved or plan.has_room(candidate.units, candidate.run_ns, own, now):
                    return candidate
                if plans < _MOST_PLANS and plan.still_possible(candidate, own, now):
                    return candidate
                plans += 1
            lag_ns = LAG * candidate.run_ns / candidate.state.model.weight
            if not reserved and (starved or used + lag_ns < least):
                with_it = plan.with_reserved(candidate, jobs, whatever_is_lost=starved)
                plan, reserved = with_it or plan, with_it is not None
        return None

    def _starved(self, state: ModelState, now: int) -> bool:
        """Whether a model has waited for two sessions without a batch: then no deadline job stands in its way."""
        since_ns = max(self._started_ns.get(state.model.name, 0), state.waiting[0].arrival_ns)
        return now - since_ns > STARVED * self._session_ns

    def _start(self, candidate: Candidate, jobs: DeadlineJobs, device: DeviceState, now: int) -> Start:
        name = candidate.name
        own = jobs.own(name, now)
        if own is not None:
            jobs.remove(own)
        self._started_ns[name] = now
        reason = "fair pass: least device time" if own is None else "its deadline job"
        return Start(name, device.spec.id, candidate.units, candidate.requests, reason)

    def _rank(self, candidate: Candidate) -> tuple[int, float]:
        state = candidate.state
        return -state.model.priority, self._used_ns(state) / state.model.weight

    def _used_ns(self, state: ModelState) -> int:
        """Device time of a model in the sessions that count; what runs counts whole."""
        running = sum([batch.expected_ns for batch in state.running.values()])
        return state.device_ns + running - self._past[0][1].get(state.model.name, 0)


def _collected(state: ModelState) -> int:
    """Requests that come within an SLO, at least 1; any number where the rate is not known."""
    rate = max(state.rate_per_s, state.model.rate_per_s)
    return max(1, ceil(rate * state.model.slo_ns / SECOND_NS)) if rate else 1 << 30
