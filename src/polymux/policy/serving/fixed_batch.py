"""Batches of a fixed size on the whole device: what a server does without knowing how long its models take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from polymux.core.decision import WakeAt
from polymux.core.errors import InvalidRequest
from polymux.core.serving.decision import PolicyDecision, RejectRequest, Start
from polymux.core.serving.event import RequestsArrived, ServingEvent
from polymux.core.serving.model import Request
from polymux.core.serving.view import DeviceState, ModelState, ServingView
from polymux.policy.serving.instances import Instances
from polymux.policy.serving.operating_point import run_time_ns, take

BATCH = 16


class FixedBatch:
    """Batches of 16 on the whole device, first come first served; a smaller one only when it would be late.

    Option: another size of batch.

    Notes
    -----
    A batch starts when it is full, or when a full one could no longer keep the first deadline. Of
    those that may start, the one whose first request came first.
    """

    def __init__(self, batch: int = BATCH) -> None:
        self._batch = batch
        self._instances = Instances(lambda _, spec: spec.shares[-1])

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy."""
        if option and not (option.isdecimal() and int(option) > 0):
            raise InvalidRequest(f"policy 'fixed_batch': the batch is {option!r}; give a number from 1 on")
        return cls(int(option) if option else BATCH)

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:  # noqa: ARG002
        """Admit everything."""
        return None

    def awaits(self, view: ServingView, request: Request, now: int) -> bool:  # noqa: ARG002
        """Look again when a batch is full, or is due at another time than before."""
        state = view.models[request.model]
        if state.waiting[0] is request:
            return True
        sizes = [state.max_batch(device.spec) for device in view.devices.values()]
        return state.waiting_items >= min(self._batch, *sizes)

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        """Start the batch that is full, or due, and came first."""
        wake_ns: int | None = None
        for device in view.devices.values():
            best: tuple[int, Start] | None = None
            for state in view.waiting_in_order() if device.startable else ():
                found = self._batch_of(state, device)
                if found is None:
                    continue
                due_ns, start = found
                if due_ns > now:
                    wake_ns = due_ns if wake_ns is None else min(wake_ns, due_ns)
                elif best is None or state.waiting[0].arrival_ns < best[0]:
                    best = (state.waiting[0].arrival_ns, start)
            if best is not None:
                return [best[1]]
        decisions: list[PolicyDecision] = []
        if not isinstance(event, RequestsArrived):
            decisions += self._instances.preparations(view, event)
        if wake_ns is not None:
            decisions.append(WakeAt(wake_ns, "a batch that is not full is due"))
        return decisions

    def _batch_of(self, state: ModelState, device: DeviceState) -> tuple[int, Start] | None:
        """Next batch of a model on a device and when it is to start at the latest; 0: it is full."""
        units = self._instances.usable(state, device.spec)
        if units is None or units not in device.startable:
            return None
        size = min(self._batch, state.max_batch(device.spec))
        requests, items = take(state, size)
        start = Start(state.model.name, device.spec.id, units, requests, "full" if items >= size else "due")
        if items >= size or requests < len(state.waiting):
            return 0, start
        return state.waiting[0].deadline_ns - run_time_ns(state, device.spec, units, size), start
