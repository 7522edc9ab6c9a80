"""SwitchFlow: a device belongs to one job at a time, which gives way between subgraphs to whoever comes before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Self

from polymux.core.decision import WakeAt
from polymux.core.errors import InvalidRequest
from polymux.core.jobs.decision import Grant, HoldTasks, JobPolicyDecision, LetTasksRun, TakeBack
from polymux.core.jobs.event import JobEvent
from polymux.core.jobs.model import PreemptionLevel
from polymux.core.jobs.view import JobDeviceState, JobState, JobView
from polymux.policy.jobs.fair_queue import FairQueue
from polymux.policy.jobs.levels import AT_ONCE_NS, MS, cheapest, take_back
from polymux.policy.jobs.occupancy import WINDOW_NS, Occupancy
from polymux.policy.jobs.placing import Plan, are_too_large
from polymux.policy.jobs.task_turns import TaskTurns
from polymux.policy.jobs.turns import Turns

_FOR_PRIORITY_NS = 10 * MS
"""How soon a job of higher priority is to have its device."""
_FOR_TURNS_NS = 10_000 * MS
"""How soon one of the same priority is to have it: no hurry."""
_AHEAD_NS = 1_000 * MS
"""How far tasks may run ahead of jobs of their priority."""
_SAY_AGAIN_NS = 1_000 * MS
"""After this time tasks that keep a job waiting ask anew: what comes while they run says nothing of its priority."""


class SwitchFlow:
    """One job at a time holds a device, and gives way at once to tasks and higher priorities; preempted jobs may move.

    Tasks of queues come before jobs of their own priority and below; without deadlines they give way to jobs of their
    own priority once they have had a second more than their part by weight. Jobs of one priority take turns, by weight.
    A job that is preempted goes on elsewhere where that finishes it sooner, and comes back when its device is free. How
    a job is made to give way is the cheapest that is in time; ``switchflow=LEVEL`` uses nothing beyond that level
    (step, boundary, launches, idle, stop).

    References
    ----------
    Wu, Wu, Ghose, Xing: SwitchFlow: Preemptive Multitasking for Deep Learning. Middleware 2021. There a preempted run
    is aborted and repeated; here it goes on from its boundary.
    """

    exclusive: ClassVar[bool] = True

    def __init__(self, strongest: PreemptionLevel = PreemptionLevel.STOP) -> None:
        self._strongest = strongest
        self._queue = FairQueue()
        self._occupancy = Occupancy()
        self._turns = Turns()
        self._task_turns = TaskTurns(self._queue, _AHEAD_NS)
        self._look_ns = 0
        self._hold_ns = 0

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy."""
        if not option:
            return cls()
        levels = {level.name.lower(): level for level in PreemptionLevel}
        if option not in levels:
            raise InvalidRequest(
                f"job policy 'switchflow': {option!r} is no level; give one of {', '.join(levels)}"
            )
        return cls(levels[option])

    def decide(self, view: JobView, event: JobEvent, now: int) -> Sequence[JobPolicyDecision]:  # noqa: ARG002
        """Serve tasks first, then compare who should hold each device with who does."""
        self._queue.update(view, now)
        self._occupancy.update(view, now)
        self._turns.update(view, now)
        self._task_turns.update(view, now)
        served: list[JobPolicyDecision] = []
        for device in view.devices.values():
            if device.tasks_deadline_ns is not None:
                self._task_turns.release(device)
            if device.tasks_wait and not self._task_turns.held(device):
                served += self._serve_tasks(view, device, now)
        if served:
            return served
        if all(device.tasks_run for device in view.devices.values()):
            pairs = [(device, job) for device in view.devices.values() for job in view.jobs.values()]
            hold_ns = self._next_hold_ns(pairs, now)
            if hold_ns is None or hold_ns > now:
                return self._wake_to_hold(hold_ns, now)
        ranked = sorted(
            (job for job in view.jobs.values() if job.wants),
            key=lambda job: (
                -job.spec.priority, not self._turns.lasts(job), self._queue.tag(job), job.order,
            ),
        )  # fmt: skip
        plan = Plan(view, ranked, self._occupancy)
        for device in view.devices.values():
            decision = self._follow(view, device, plan, now)
            if decision is not None:
                return [decision]
        pairs = [(view.devices[name], job) for name, job in plan.owners.items()]
        hold_ns = self._next_hold_ns(pairs, now)
        return [*self._wake(view, plan, now), *self._wake_to_hold(hold_ns, now)]

    def _serve_tasks(self, view: JobView, device: JobDeviceState, now: int) -> list[TakeBack | LetTasksRun]:
        name, priority = device.spec.id, device.tasks_priority
        holder = view.jobs[device.holders[0]] if device.holders else None
        found: list[TakeBack | LetTasksRun] = []
        if holder is not None:
            if holder.spec.priority > priority:
                return []
            deadline_ns = device.tasks_deadline_ns
            slack_ns = AT_ONCE_NS if deadline_ns is None else max(AT_ONCE_NS, deadline_ns - now)
            level = cheapest(holder, self._levels(holder, device), slack_ns)
            asked = _ask(holder, device, level, slack_ns, "tasks wait")
            found = [] if asked is None else [asked]
            if asked is None or not level.by_system:
                return found
        if any(job.wants and job.spec.priority > priority for job in view.jobs.values()):
            return found  # the plan says who comes first
        return [*found, LetTasksRun(name, "nobody holds it")]

    def _follow(
        self, view: JobView, device: JobDeviceState, plan: Plan, now: int
    ) -> Grant | TakeBack | LetTasksRun | HoldTasks | None:
        owner = plan.owners.get(device.spec.id)
        if not device.holders:
            return self._fill(view, device, owner, plan.reason, now)
        holder = view.jobs[device.holders[0]]
        if device.lost is not None:
            return None
        if owner is holder:
            self._turns.begin(view, holder, device, now)
            return None
        if owner is not None:
            return self._displace(owner, holder, device)
        target = plan.device_of(holder)
        if target is None:
            return self._ask_job(holder, device, _FOR_TURNS_NS, "others need the memory", whole=True)
        if target.holders or target.tasks:
            self._turns.begin(view, holder, device, now)
            return None
        return self._ask_job(holder, device, _FOR_TURNS_NS, f"{target.spec.id} is better", whole=True)

    def _fill(
        self,
        view: JobView,
        device: JobDeviceState,
        owner: JobState | None,
        why: Callable[[JobState], str],
        now: int,
    ) -> Grant | LetTasksRun | HoldTasks | None:
        """Give a device that no job holds to its owner, or to tasks."""
        able = owner is not None and owner.device is None and view.has_room(owner, device)
        if device.tasks_run:
            return self._hold(owner, device, now) if owner is not None and able else None
        comes_first = (
            able
            and owner is not None
            and (
                owner.spec.priority > device.tasks_priority
                or (owner.spec.priority == device.tasks_priority and self._task_turns.held(device))
            )
        )
        if device.tasks and not comes_first:
            self._task_turns.release(device)
            return LetTasksRun(device.spec.id, "nobody holds it")
        if owner is None or not able:
            return None
        self._turns.begin(view, owner, device, now)
        return Grant(owner.spec.id, device.spec.id, why(owner))

    def _hold(self, owner: JobState, device: JobDeviceState, now: int) -> HoldTasks | None:
        """Have the tasks that run on a device give way to its owner, if it is time to."""
        at_ns = self._hold_at_ns(owner, device, now)
        if device.tasks_leaving or at_ns > now:
            return None
        name = owner.spec.name
        if owner.spec.priority > device.tasks_priority:
            return HoldTasks(device.spec.id, f"{name!r} comes first")
        if self._shares(owner, device) and self._task_turns.hold_at_ns(owner, device, now) <= now:
            self._task_turns.hold(device)
            return HoldTasks(device.spec.id, f"they have had more than their part beside {name!r}")
        return HoldTasks(device.spec.id, f"{name!r} waits: what are they now?")

    def _hold_at_ns(self, job: JobState, device: JobDeviceState, now: int) -> int:
        """When tasks that run on a device are to be held, or asked anew, for a job that waits."""
        if job.spec.priority > device.tasks_priority:
            return now
        at_ns = device.let_in_ns + _SAY_AGAIN_NS
        return (
            min(at_ns, self._task_turns.hold_at_ns(job, device, now)) if self._shares(job, device) else at_ns
        )

    @staticmethod
    def _shares(job: JobState, device: JobDeviceState) -> bool:
        """Whether a job and the tasks of a device have the same rights to it."""
        return job.spec.priority == device.tasks_priority and device.tasks_deadline_ns is None

    def _displace(self, owner: JobState, holder: JobState, device: JobDeviceState) -> TakeBack | None:
        """Ask a job to give its device up to another one."""
        whole = are_too_large(owner, holder, device)
        if owner.spec.priority > holder.spec.priority:
            reason = f"{owner.spec.name!r} comes first"
            return self._ask_job(holder, device, _FOR_PRIORITY_NS, reason, whole=whole)
        return self._ask_job(holder, device, _FOR_TURNS_NS, f"the turn of {owner.spec.name!r}", whole=whole)

    def _ask_job(
        self, holder: JobState, device: JobDeviceState, slack_ns: int, reason: str, *, whole: bool
    ) -> TakeBack | None:
        """Take a device back for another job: at the end of a run where its activations would be in the way.

        On idle cores it is left to compute only beside tasks: beside another job it would have more than its part.
        """
        levels = self._levels(holder, device)
        levels = tuple(level for level in levels if level is not PreemptionLevel.IDLE) or levels
        if whole:
            level = levels[0]
        elif slack_ns == _FOR_TURNS_NS and PreemptionLevel.BOUNDARY in levels:
            level = PreemptionLevel.BOUNDARY
        else:
            level = cheapest(holder, levels, slack_ns)
        return _ask(holder, device, level, slack_ns, reason)

    def _levels(self, holder: JobState, device: JobDeviceState) -> tuple[PreemptionLevel, ...]:
        levels = holder.spec.levels_on(device.spec)
        return tuple(level for level in levels if level <= self._strongest) or levels[:1]

    def _wake(self, view: JobView, plan: Plan, now: int) -> list[JobPolicyDecision]:
        """Look again when a turn ends for which others wait, or when a device may have become better."""
        holders = [view.jobs[name] for device in view.devices.values() for name in device.holders]
        ends = [
            self._turns.end_ns(holder, now)
            for holder in holders
            if holder.leaving is None and plan.waits_beside(holder)
        ]
        for device in view.devices.values():
            if self._task_turns.held(device) and device.holders:
                at_ns = self._task_turns.next_serve_ns(view, device, now)
                ends += [] if at_ns is None else [at_ns]
        if ends:
            return [WakeAt(max(now + 1, min(ends)), "the end of a turn")]
        if now < self._look_ns or len(view.devices) == 1:
            return []
        fading = any(self._occupancy.part(device) for device in view.devices.values() if not device.tasks)
        if not fading or not any(job.wants for job in view.jobs.values()):
            return []
        self._look_ns = now + WINDOW_NS
        return [WakeAt(self._look_ns, "a device may have become better")]

    def _next_hold_ns(self, pairs: Iterable[tuple[JobDeviceState, JobState]], now: int) -> int | None:
        """When tasks that run may have to be held for a job that waits; None: there is none."""
        times = [
            self._hold_at_ns(job, device, now)
            for device, job in pairs
            if device.tasks_run and not device.tasks_leaving
            if job.wants and job.device is None and job.spec.allows(device.spec.id)
        ]
        return min(times, default=None)

    def _wake_to_hold(self, hold_ns: int | None, now: int) -> list[JobPolicyDecision]:
        """Ask to be woken then, unless that is bound to happen before."""
        if hold_ns is None or hold_ns <= now or now < self._hold_ns <= hold_ns:
            return []
        self._hold_ns = hold_ns
        return [WakeAt(hold_ns, "tasks may have had more than their part by then")]


def _ask(
    holder: JobState, device: JobDeviceState, level: PreemptionLevel, slack_ns: int, reason: str
) -> TakeBack | None:
    """Take a device back, unless that has been asked for."""
    if holder.leaving is not None and level <= holder.leaving:
        return None
    return take_back(holder, device, level, slack_ns, reason)
