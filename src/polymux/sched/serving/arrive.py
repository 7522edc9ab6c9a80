"""Lets requests wait that the policy admits: the one way into the state that many take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polymux.core.errors import BadDecision
from polymux.core.serving.decision import RejectRequest, ServingDecision
from polymux.core.serving.model import Request
from polymux.core.serving.view import ModelState, ServingView
from polymux.policy.serving.interface import ServingPolicy
from polymux.sched.serving.state import ServingState

Awaits = Callable[[ServingView, Request, int], bool]

_RATE_WINDOW_NS = 500_000_000
"""Over which the arrivals of a model are counted for its rate."""


class Entrance:
    """Admits requests.

    Parameters
    ----------
    state : ServingState
    policy : ServingPolicy
    awaits : callable
        As `polymux.policy.serving.interface.SelectivePolicy.awaits`.
    """

    def __init__(self, state: ServingState, policy: ServingPolicy, awaits: Awaits) -> None:
        self._state = state
        self._policy = policy
        self._awaits = awaits

    def admit(
        self,
        requests: Sequence[Request],
        first: int,
        end: int,
        decisions: list[ServingDecision],
        *,
        whole: bool,
    ) -> tuple[int, bool]:
        """Let requests wait, or reject them where the policy does not admit them; the time goes on to each arrival.

        Parameters
        ----------
        requests : sequence of Request
        first, end : int
            Those from `first` to before `end`.
        decisions : list of ServingDecision
            Rejections are added to it.
        whole : bool
            All of them; otherwise only those up to the first arrival after which the policy is to be asked.

        Returns
        -------
        end : int
            Behind the last one that was looked at.
        ask : bool
            Whether the policy is to be asked what to start.

        Raises
        ------
        BadDecision
            If the policy raised for one of them, which is rejected; the others are treated as always.
        """
        view, now = self._state.view, self._state.now
        models, admit, awaits = view.models, self._policy.admit, self._awaits
        can_start, ask = view.can_start, False
        bad: BadDecision | None = None
        for index in range(first, end):
            request = requests[index]
            if request.arrival_ns > now:
                if ask and not whole:
                    end = index
                    break
                now = request.arrival_ns
            model = models.get(request.model)
            if model is None:
                decisions.append(RejectRequest(request, None, f"model {request.model!r} is not served"))
                continue
            model.arrived += 1
            if now >= model.window_start_ns + _RATE_WINDOW_NS:
                _measure_rate(model, now)
            model.window_requests += 1
            try:
                refused = admit(view, request, now)
            except Exception as error:
                refused = RejectRequest(request, None, "the scheduling policy failed, see the log")
                bad = BadDecision(request, f"the policy raised {error!r}")
            if refused is not None:
                model.refused += 1
                decisions.append(refused)
            else:
                model.admitted += 1
                model.waiting_items += request.items
                waiting = model.waiting
                if waiting and waiting[-1].deadline_ns <= request.deadline_ns:
                    waiting.append(request)
                else:
                    _insert(view, model, request)
            if can_start and not ask:
                ask = awaits(view, request, now)
        self._state.advance(now)
        if bad is not None:
            raise bad
        return end, ask


def _measure_rate(model: ModelState, now: int) -> None:
    if model.window_requests:
        rate = model.window_requests * 1e9 / (now - model.window_start_ns)
        model.rate_per_s = rate if not model.rate_per_s else (model.rate_per_s + rate) / 2
    model.window_start_ns, model.window_requests = now, 0


def _insert(view: ServingView, model: ModelState, request: Request) -> None:
    """Put a request before those with a later deadline; note that the model has one if it is the first."""
    waiting = model.waiting
    if not waiting:
        view.waiting[request.model] = model
    index = len(waiting)
    while index and waiting[index - 1].deadline_ns > request.deadline_ns:
        index -= 1
    waiting.insert(index, request)
