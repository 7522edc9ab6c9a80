"""Temporal sharing: one model at a time has the whole device, for a slice of time."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Self

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import PolicyDecision, RejectRequest, Start
from polymux.core.serving.event import (
    ModelAdded,
    ModelRemoved,
    RequestsArrived,
    ServingDeviceAdded,
    ServingEvent,
)
from polymux.core.serving.model import ModelName, Request, ServingDevice
from polymux.core.serving.view import DeviceState, ModelState, ServingView
from polymux.policy.serving.instances import Instances
from polymux.policy.serving.operating_point import adaptive_batch, run_time_ns, take


class TemporalSharing:
    """One model at a time on the whole device, in slices by SLO, with batches that fit the SLO.

    Option: ``MODEL:PARTS,...`` sets the relative lengths of slices; others have theirs by SLO, the longest counting 1.

    Notes
    -----
    The slices of one round together are as long as the longest SLO. A batch starts if it fits in what is left of its
    model's slice; what is left then is added to its next one, so that the times of models with a backlog have the
    ratio of their slices. A model without requests is passed over and keeps nothing.

    References
    ----------
    Shreedhar, Varghese, "Efficient fair queuing using deficit round robin", SIGCOMM 1995. Batches: Clipper (NSDI 2017)
    and Nexus (SOSP 2019).
    """

    def __init__(self, parts: dict[str, float] | None = None) -> None:
        self._parts = parts or {}
        self._instances = Instances(lambda _, spec: spec.shares[-1])
        self._rounds: dict[DeviceId, _Round] = {}
        self._batches: dict[tuple[ModelName, DeviceId, int], int] = {}
        self._slices: dict[ModelName, float] = {}

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy."""
        parts: dict[str, float] = {}
        for part in option.split(",") if option else ():
            name, _, number = part.rpartition(":")
            try:
                parts[name] = float(number)
            except ValueError:
                parts[name] = 0.0
            if not name or not 0 < parts[name] < float("inf"):
                raise InvalidRequest(
                    f"policy 'temporal': {part!r} is no slice; give MODEL:PARTS with a number above 0, with commas"
                    " between"
                )
        return cls(parts)

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:  # noqa: ARG002
        """Admit everything."""
        return None

    def awaits(self, view: ServingView, request: Request, now: int) -> bool:  # noqa: ARG002
        """Look again where nothing runs."""
        return any(device.startable and not device.running for device in view.devices.values())

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:  # noqa: ARG002
        """Start a batch of the model whose turn it is on each device where nothing runs."""
        if isinstance(event, ModelAdded | ModelRemoved | ServingDeviceAdded):
            self._slices = self._divide(view)
            self._batches = {}
        for device in view.devices.values():
            if device.startable and not device.running:
                start = self._choose(view, device)
                if start is not None:
                    return [start]
        return [] if isinstance(event, RequestsArrived) else list(self._instances.preparations(view, event))

    def _choose(self, view: ServingView, device: DeviceState) -> Start | None:
        spec = device.spec
        queued: dict[ModelName, tuple[int, int, int]] = {}
        for state in view.waiting_in_order():
            name = state.model.name
            units = self._instances.usable(state, spec)
            if units is not None and units in device.startable:
                requests, items = take(state, self._batch(state, spec, units))
                queued[name] = (units, requests, run_time_ns(state, spec, units, items))
        if not queued:
            return None
        turns = self._rounds.setdefault(spec.id, _Round())
        name = turns.next(self._slices, {name: run_ns for name, (_, _, run_ns) in queued.items()})
        units, requests, _ = queued[name]
        return Start(name, spec.id, units, requests, "its slice")

    def _batch(self, state: ModelState, spec: ServingDevice, units: int) -> int:
        """Most items of a batch."""
        key = (state.model.name, spec.id, units)
        known = self._batches.get(key)
        if known is None:
            known = self._batches[key] = adaptive_batch(state, spec, units)
        return known

    def _divide(self, view: ServingView) -> dict[ModelName, float]:
        """Length of each model's slice in a round, in ns."""
        longest = max((state.model.slo_ns for state in view.models.values()), default=1)
        parts = {
            name: self._parts.get(str(name), state.model.slo_ns / longest)
            for name, state in view.models.items()
        }
        whole = sum(parts.values())
        return {name: longest * part / whole for name, part in parts.items()}


class _Round:
    """Deficit round robin over the models of one device."""

    def __init__(self) -> None:
        self._left: dict[ModelName, float] = {}
        self._turn: ModelName | None = None

    def next(self, slices: dict[ModelName, float], costs: dict[ModelName, int]) -> ModelName:
        """Choose one of these models, by the slices and costs of their next batches in ns, and charge it."""
        self._left = {name: left for name, left in self._left.items() if name in costs}
        names = list(costs)
        at = names.index(self._turn) if self._turn in costs else -1
        if at >= 0 and self._left.get(names[at], 0.0) >= costs[names[at]]:
            return self._charge(names[at], costs)
        order = names[at + 1 :] + names[: at + 1]
        left = {name: self._left.get(name, 0.0) for name in order}
        whole = max(0, min(ceil((costs[name] - left[name]) / slices[name]) for name in order) - 1)
        left = {name: left[name] + whole * slices[name] for name in order}  # rounds in which nothing fits
        while True:
            for name in order:
                left[name] += slices[name]
                if left[name] >= costs[name]:
                    self._left = left
                    return self._charge(name, costs)

    def _charge(self, name: ModelName, costs: dict[ModelName, int]) -> ModelName:
        self._turn = name
        self._left[name] -= costs[name]
        return name
