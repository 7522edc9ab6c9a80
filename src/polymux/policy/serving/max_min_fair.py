"""Max-min fairness: whoever has had least of the devices is next, and is not overtaken for long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from polymux.core.serving.decision import PolicyDecision, RejectRequest, Start
from polymux.core.serving.event import RequestsArrived, ServingEvent
from polymux.core.serving.model import ModelName, Request
from polymux.core.serving.view import DeviceState, ModelState, ServingView
from polymux.policy.serving.operating_point import Candidate, OperatingPoints, expected_end_ns
from polymux.policy.serving.settled import Settled
from polymux.policy.serving.timeline import Timeline


class MaxMinFair:
    """The model that has had least unit time for its weight, at its knee; no regard to deadlines.

    Option: ``MODEL:UNITS@BATCH,...`` sets operating points.

    Notes
    -----
    Unit time is units times time, so that what a small share leaves over goes to models that need a larger one. When
    the next model does not fit, others start only if they end before it will. A model that had no requests for a while
    comes back level with the least of those that had.

    References
    ----------
    Bertsekas, Gallager, Data Networks (1992), section 6.5: max-min fairness. Lifka, "The ANL/IBM SP scheduling
    system" (1995): backfilling.
    """

    def __init__(self, points: OperatingPoints) -> None:
        self._points = points
        self._settled = Settled()
        self._skipped: dict[ModelName, float] = {}
        self._active: set[ModelName] = set()

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy."""
        return cls(OperatingPoints.parse("max_min_fair", option))

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:  # noqa: ARG002
        """Admit everything."""
        return None

    def awaits(self, view: ServingView, request: Request, now: int) -> bool:  # noqa: ARG002
        """Look again when a model that had no requests has some."""
        return self._settled.is_upset(request, now)

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        """Start what is next, or what fits before it."""
        self._level(view)
        for device in view.devices.values():
            candidates = self._points.candidates(view, device) if device.startable else []
            chosen = self._choose(sorted(candidates, key=self._rank), view, device, now)
            if chosen is not None:
                self._settled.forget()
                reason = "least unit time for its weight"
                return [Start(chosen.name, device.spec.id, chosen.units, chosen.requests, reason)]
        self._settled.note(view)
        return (
            []
            if isinstance(event, RequestsArrived)
            else list(self._points.instances.preparations(view, event))
        )

    def _choose(
        self, ranked: list[Candidate], view: ServingView, device: DeviceState, now: int
    ) -> Candidate | None:
        if not ranked or ranked[0].startable or not device.running:
            return next((candidate for candidate in ranked if candidate.startable), None)
        timeline = Timeline(device.spec.units, now)
        for batch in device.running.values():
            state = view.models.get(batch.model)
            timeline.add(batch.units, now, expected_end_ns(batch, state.model.slo_ns if state else 1, now))
        first = ranked[0]
        start_ns = timeline.earliest(first.units, first.run_ns, now + 1)
        assert start_ns is not None  # a share is never larger than its device
        timeline.add(first.units, start_ns, start_ns + first.run_ns)
        fitting = (c for c in ranked if c.startable and timeline.fits(c.units, now, now + c.run_ns))
        return next(fitting, None)

    def _rank(self, candidate: Candidate) -> tuple[int, float]:
        return -candidate.state.model.priority, self._used(candidate.state)

    def _used(self, state: ModelState) -> float:
        """Unit time of a model for its weight, what runs counted whole."""
        running = sum([batch.expected_ns * batch.units for batch in state.running.values()])
        return (state.unit_ns + running) / state.model.weight + self._skipped.get(state.model.name, 0.0)

    def _level(self, view: ServingView) -> None:
        """Bring models that have requests again level with the least of those that had some before."""
        active = set(view.waiting)
        for device in view.devices.values():
            active.update(batch.model for batch in device.running.values() if batch.model in view.models)
        for name in self._skipped.keys() - view.models.keys():
            del self._skipped[name]
        new = active - self._active
        if new and (stayed := active & self._active):
            least = min(self._used(view.models[name]) for name in stayed)
            for name in new:
                behind = least - self._used(view.models[name])
                self._skipped[name] = self._skipped.get(name, 0.0) + max(0.0, behind)
        self._active = active
