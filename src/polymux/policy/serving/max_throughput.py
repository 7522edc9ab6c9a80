"""Max-throughput: the set of models that together answer most requests in a second."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Self

from polymux.core.serving.decision import PolicyDecision, RejectRequest, Start
from polymux.core.serving.event import RequestsArrived, ServingEvent
from polymux.core.serving.model import Request
from polymux.core.serving.view import DeviceState, ServingView
from polymux.policy.serving.operating_point import Candidate, OperatingPoints
from polymux.policy.serving.settled import Settled

_MOST_CANDIDATES = 32
"""Of more models, those with most requests per unit and time are looked at."""


class MaxThroughput:
    """The models, side by side at their knees, that answer most requests in a second; no regard to deadlines.

    Option: ``MODEL:UNITS@BATCH,...`` sets operating points.

    Notes
    -----
    Whenever units are free, the knapsack of waiting batches is solved exactly: value, the requests per second of a
    batch; size, its units. A model that is worth little may wait forever while others have requests.
    """

    def __init__(self, points: OperatingPoints) -> None:
        self._points = points
        self._settled = Settled()

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy."""
        return cls(OperatingPoints.parse("max_throughput", option))

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:  # noqa: ARG002
        """Admit everything."""
        return None

    def awaits(self, view: ServingView, request: Request, now: int) -> bool:  # noqa: ARG002
        """Look again when a model that had no requests has some."""
        return self._settled.is_upset(request, now)

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:  # noqa: ARG002
        """Start the best set on the first device that can take one."""
        for device in view.devices.values():
            candidates = (
                [c for c in self._points.candidates(view, device) if c.startable] if device.startable else []
            )
            if candidates:
                chosen = max(_best_set(candidates, device), key=_rate)
                self._settled.forget()
                return [
                    Start(
                        chosen.name, device.spec.id, chosen.units, chosen.requests, "most requests per second"
                    )
                ]
        self._settled.note(view)
        return (
            []
            if isinstance(event, RequestsArrived)
            else list(self._points.instances.preparations(view, event))
        )


def _rate(candidate: Candidate) -> float:
    """Items per ns."""
    return candidate.items / candidate.run_ns


def _best_set(candidates: list[Candidate], device: DeviceState) -> list[Candidate]:
    """Solve the 0/1 knapsack of the free units by dynamic programming; never empty."""
    if sum([candidate.units for candidate in candidates]) <= device.free:
        return candidates
    if len(candidates) > _MOST_CANDIDATES:
        candidates = sorted(candidates, key=lambda c: _rate(c) / c.units, reverse=True)[:_MOST_CANDIDATES]
    step = gcd(*(candidate.units for candidate in candidates))
    free = device.free // step
    best: list[tuple[float, list[Candidate]]] = [(0.0, [])] * (free + 1)
    for candidate in candidates:
        size, rate = candidate.units // step, _rate(candidate)
        for units in range(free, size - 1, -1):
            value, chosen = best[units - size]
            if value + rate > best[units][0]:
                best[units] = (value + rate, [*chosen, candidate])
    return best[free][1]
