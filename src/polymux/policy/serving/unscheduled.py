"""Requests in the order of their arrival, with no regard to deadlines: what happens without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from polymux.core.errors import InvalidRequest
from polymux.core.serving.decision import PolicyDecision, RejectRequest, Start
from polymux.core.serving.event import ServingEvent
from polymux.core.serving.model import Request
from polymux.core.serving.view import ServingView


class Unscheduled:
    """Each request alone, first come first served, on the largest share that is free."""

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy; it has no options."""
        if option:
            raise InvalidRequest(f"policy 'unscheduled' has no option; it was given {option!r}")
        return cls()

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:  # noqa: ARG002
        """Admit everything."""
        return None

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:  # noqa: ARG002
        """Start the request that came first among those whose model is ready where something is free."""
        for device in view.devices.values():
            if not device.startable or device.lost is not None:
                continue
            ready = [
                (state.waiting[0].arrival_ns, name, max(shares))
                for name, state in view.waiting.items()
                if (shares := state.ready.get(device.spec.id, set()).intersection(device.startable))
            ]
            if ready:
                _, name, units = min(ready)
                return [Start(name, device.spec.id, units, 1, "first come, first served")]
        return []
