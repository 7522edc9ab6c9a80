"""The engine of requests: one event in, the decisions that follow out."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.decision import WakeAt
from polymux.core.errors import BadDecision
from polymux.core.serving.decision import PolicyDecision, Refuse, ServingDecision, Start
from polymux.core.serving.event import RequestsArrived, ServingEvent
from polymux.core.serving.model import Request
from polymux.core.serving.view import ServingView
from polymux.policy.serving.interface import SelectivePolicy, ServingPolicy
from polymux.sched.serving.apply import apply_instance, refuse, start
from polymux.sched.serving.arrive import Entrance
from polymux.sched.serving.fold import fold
from polymux.sched.serving.state import ServingState


class ServingEngine:
    """Folds events into its state, asks the policy, and returns checked decisions in the order to carry them out.

    Parameters
    ----------
    policy : ServingPolicy
        Fresh, and used by this engine alone.

    Notes
    -----
    A request waits from its admission until a `Dispatch` or a `RejectRequest` names it; it is named by exactly one,
    or cancelled. The units of running batches of a device never exceed it, and where the device has blocks, no two of
    them overlap. Not thread-safe, no clock: `now` is the driver's, and a `now` before an earlier one counts as that.
    """

    def __init__(self, policy: ServingPolicy) -> None:
        self._policy = policy
        self._state = ServingState()
        awaits = policy.awaits if isinstance(policy, SelectivePolicy) else _always
        self._entrance = Entrance(self._state, policy, awaits)

    @property
    def view(self) -> ServingView:
        """What it knows; to be read only."""
        return self._state.view

    def handle(self, event: ServingEvent, now: int) -> list[ServingDecision]:
        """Fold one event in and return what is to be done about it.

        Parameters
        ----------
        event : ServingEvent
        now : int, ns
            Monotonic time. Requests that arrive later than this arrive at their own time.

        Returns
        -------
        list of ServingDecision

        Raises
        ------
        InvalidRequest
            For an event that cannot be (an unknown model or device, a batch that does not run); nothing changes.
        BadDecision
            If the policy raised, or decided what must not be carried out. Those in the error's `decisions` are to be
            carried out all the same. What waits goes on waiting, and the next event asks the policy again.
        """
        state = self._state
        now = state.advance(now)
        decisions: list[ServingDecision] = []
        try:
            if isinstance(event, RequestsArrived):
                requests = event.requests
                _, ask = self._entrance.admit(requests, 0, len(requests), decisions, whole=True)
                now = state.now
            else:
                fold(state, event, decisions, now)
                ask = True
            if ask:
                self._ask(event, decisions, now)
        except BadDecision as bad:
            bad.decisions = tuple(decisions)
            raise
        return decisions

    def arrive(self, requests: Sequence[Request], first: int, end: int) -> tuple[int, list[ServingDecision]]:
        """Let requests arrive one after the other, until the policy has something to decide about.

        For a driver that knows the future. It comes to the same as one `RequestsArrived` for those that arrive at the
        same time, and as one with all that were taken.

        Parameters
        ----------
        requests : sequence of Request
            By arrival.
        first, end : int
            Those from `first` to before `end`, which arrive before anything else happens.

        Returns
        -------
        taken : int
            Behind the last one that has arrived.
        decisions : list of ServingDecision
            As of `handle`, at the arrival of the last one.

        Raises
        ------
        BadDecision
            As `handle`.
        """
        decisions: list[ServingDecision] = []
        try:
            taken, ask = self._entrance.admit(requests, first, end, decisions, whole=False)
            if ask:
                self._ask(RequestsArrived(requests[first:taken]), decisions, self._state.now)
        except BadDecision as bad:
            bad.decisions = tuple(decisions)
            raise
        return taken, decisions

    def _ask(self, event: ServingEvent, decisions: list[ServingDecision], now: int) -> None:
        state = self._state
        while True:
            try:
                chosen: Sequence[PolicyDecision] = self._policy.decide(state.view, event, now)
            except Exception as error:
                raise BadDecision(event, f"the policy raised {error!r}") from error
            started = False
            for decision in chosen:
                if isinstance(decision, Start):
                    decisions.append(start(state, decision, now))
                    started = True
                elif isinstance(decision, WakeAt):
                    decisions.append(decision)
                elif isinstance(decision, Refuse):
                    decisions += refuse(state, decision)
                else:
                    decisions.append(apply_instance(state, decision))
            if not started:
                return


def _always(view: ServingView, request: Request, now: int) -> bool:  # noqa: ARG001
    """Ask a policy that does not say what it waits for."""
    return True
