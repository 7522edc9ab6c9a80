"""The engine of jobs: one event in, the decisions that follow out."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.decision import WakeAt
from polymux.core.errors import BadDecision
from polymux.core.jobs.decision import Grant, HoldTasks, JobDecision, JobPolicyDecision, TakeBack
from polymux.core.jobs.event import JobEvent
from polymux.core.jobs.view import JobView
from polymux.policy.jobs.interface import JobPolicy
from polymux.sched.jobs.apply import grant, hold_tasks, let_tasks_run, take_back
from polymux.sched.jobs.fold import fold
from polymux.sched.jobs.patience import insist, next_ns
from polymux.sched.jobs.state import JobsState

EVICT_AFTER_NS = 10_000_000_000
"""How long a job that cannot be stopped may stay after it should have given way, while others want the device."""


class JobEngine:
    """Folds events into its state, asks the policy, and returns checked decisions in the order to carry them out.

    Parameters
    ----------
    policy : JobPolicy
        Fresh, and used by this engine alone.
    evict_after_ns : int, ns
        How long a job that cannot be stopped may stay after the time it was given to give way.

    Notes
    -----
    Invariant 1 of SwitchFlow: a device has at most one holder, a job or tasks, unless the policy shares devices. A job
    holds a device from a `Grant` until its `JobYielded`, `JobClosed`, `Evict`, or a `TakeBack` at a level of the
    operating system. The memory of what holds a device, or was stopped there, never exceeds it. What comes late of a
    job that is over has no effect. Not thread-safe, no clock: `now` is the driver's, and a `now` before an earlier one
    counts as that.

    References
    ----------
    Wu, Wu, Ghose, Xing: SwitchFlow: Preemptive Multitasking for Deep Learning. Middleware 2021.
    """

    def __init__(self, policy: JobPolicy, evict_after_ns: int = EVICT_AFTER_NS) -> None:
        self._policy = policy
        self._evict_after_ns = evict_after_ns
        self._state = JobsState()

    @property
    def view(self) -> JobView:
        """What it knows; to be read only."""
        return self._state.view

    def handle(self, event: JobEvent, now: int) -> list[JobDecision]:
        """Fold one event in and return what is to be done about it.

        Parameters
        ----------
        event : JobEvent
        now : int, ns
            Monotonic time.

        Returns
        -------
        list of JobDecision

        Raises
        ------
        InvalidRequest
            For an event that cannot be (an unknown device, a job that is open already); nothing changes.
        BadDecision
            If the policy raised, or decided what must not be carried out. Those in the error's `decisions` are to be
            carried out all the same. Who waits goes on waiting, and the next event asks the policy again.
        """
        state = self._state
        now = state.advance(now)
        decisions: list[JobDecision] = []
        fold(state, event, decisions, now)
        insist(state, decisions, now, self._evict_after_ns)
        try:
            self._ask(event, decisions, now)
        except BadDecision as bad:
            self._wake(decisions, now)
            bad.decisions = tuple(decisions)
            raise
        self._wake(decisions, now)
        return decisions

    def _ask(self, event: JobEvent, decisions: list[JobDecision], now: int) -> None:
        view = self._state.view
        for _ in range(4 * (len(view.jobs) + len(view.devices)) + 4):
            try:
                chosen: Sequence[JobPolicyDecision] = self._policy.decide(view, event, now)
            except Exception as error:
                raise BadDecision(event, f"the policy raised {error!r}") from error
            acted = False
            for decision in chosen:
                decisions.append(self._apply(decision, now))
                acted = acted or not isinstance(decision, WakeAt)
            if not acted:
                return
        raise BadDecision(event, "the policy decides without end")

    def _apply(self, decision: JobPolicyDecision, now: int) -> JobDecision:
        exclusive = self._policy.exclusive
        if isinstance(decision, Grant):
            return grant(self._state, decision, now, exclusive=exclusive)
        if isinstance(decision, TakeBack):
            return take_back(self._state, decision, now)
        if isinstance(decision, WakeAt):
            return decision
        if isinstance(decision, HoldTasks):
            return hold_tasks(self._state, decision)
        return let_tasks_run(self._state, decision, now, exclusive=exclusive)

    def _wake(self, decisions: list[JobDecision], now: int) -> None:
        at = next_ns(self._state, now, self._evict_after_ns)
        if at is not None:
            decisions.append(WakeAt(at, "a job should have given way by then"))
