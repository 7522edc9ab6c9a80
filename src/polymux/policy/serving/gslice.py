"""GSLICE: a device cut into fixed slices by the knees of its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from polymux.core.ids import DeviceId
from polymux.core.serving.decision import PolicyDecision, RejectRequest, Start
from polymux.core.serving.event import (
    ModelAdded,
    ModelRemoved,
    RequestsArrived,
    ServingDeviceAdded,
    ServingDeviceLost,
    ServingEvent,
)
from polymux.core.serving.model import ModelName, Request, ServingDevice
from polymux.core.serving.view import DeviceState, ModelState, ServingView
from polymux.policy.serving.instances import Instances
from polymux.policy.serving.operating_point import (
    SECOND_NS,
    OperatingPoints,
    adaptive_batch,
    run_time_ns,
    take,
)
from polymux.policy.serving.settled import Settled


@dataclass(slots=True)
class Slice:
    """Part of a device.

    Parameters
    ----------
    units : int
    models : list of ModelName
        Take turns on it.
    knee : int
        Units that they would like.
    """

    units: int
    models: list[ModelName]
    knee: int


class Gslice:
    """A fixed slice of the device for each model by its knee, used or not; batches that fit the SLO.

    Option: ``MODEL:UNITS@BATCH,...`` sets knees.

    Notes
    -----
    Slices have the ratio of the knees. When the knees together are more than the device (over-subscription), all are
    cut down, when they are less (under-subscription), what is left is shared out, to the shares that the device offers.
    Where there are more models than smallest shares, several take turns on a slice, earliest deadline first, grouped so
    that slices are loaded evenly. Slices change only when models or devices do.

    References
    ----------
    Dhakal, Kulkarni, Ramakrishnan, "GSLICE: controlled spatial sharing of GPUs for a scalable inference platform", SoCC
    2020.
    """

    def __init__(self, points: OperatingPoints) -> None:
        self._points = points
        self._settled = Settled()
        self._instances = Instances(lambda state, spec: self._slice_of(state, spec).units)
        self._slices: dict[DeviceId, list[Slice]] = {}
        self._of: dict[tuple[DeviceId, ModelName], Slice] = {}

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy."""
        return cls(OperatingPoints.parse("gslice", option))

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:  # noqa: ARG002
        """Admit everything."""
        return None

    def awaits(self, view: ServingView, request: Request, now: int) -> bool:  # noqa: ARG002
        """Look again when a model that had no requests has some."""
        return self._settled.is_upset(request, now)

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:  # noqa: ARG002
        """Start a batch on a slice that is idle and has requests."""
        if isinstance(event, ModelAdded | ModelRemoved | ServingDeviceAdded | ServingDeviceLost):
            self._cut(view)
            self._instances.moved = True
        for device in view.devices.values():
            if device.startable:
                busy = {batch.model for batch in device.running.values()}
                for part in self._slices.get(device.spec.id, ()):
                    start = None if busy.intersection(part.models) else self._choose(part, view, device)
                    if start is not None:
                        self._settled.forget()
                        return [start]
        self._settled.note(view)
        return [] if isinstance(event, RequestsArrived) else list(self._instances.preparations(view, event))

    def _choose(self, part: Slice, view: ServingView, device: DeviceState) -> Start | None:
        best: tuple[int, ModelState, int] | None = None
        for name in part.models:
            state = view.models[name]
            units = self._instances.usable(state, device.spec) if state.waiting else None
            if units is None or units not in device.startable:
                continue
            if best is None or state.waiting[0].deadline_ns < best[0]:
                best = (state.waiting[0].deadline_ns, state, units)
        if best is None:
            return None
        _, state, units = best
        requests, _ = take(state, adaptive_batch(state, device.spec, units))
        return Start(state.model.name, device.spec.id, units, requests, "its slice")

    def _slice_of(self, state: ModelState, spec: ServingDevice) -> Slice:
        return self._of[spec.id, state.model.name]

    def _cut(self, view: ServingView) -> None:
        self._slices = {}
        for device_id, device in view.devices.items():
            knees = {
                name: self._points.wanted(state, device.spec).units for name, state in view.models.items()
            }
            loads = {name: _load(state, device.spec) for name, state in view.models.items()}
            self._slices[device_id] = cut(knees, loads, device.spec)
        self._of = {
            (device_id, name): part
            for device_id, parts in self._slices.items()
            for part in parts
            for name in part.models
        }


def _load(state: ModelState, spec: ServingDevice) -> float:
    """Part of the time for which a model may want the smallest share: by its rate, or one request in each SLO."""
    rate = state.model.rate_per_s or SECOND_NS / state.model.slo_ns
    batch = adaptive_batch(state, spec, spec.shares[0]) if state.model.rate_per_s else 1
    return rate * run_time_ns(state, spec, spec.shares[0], batch) / batch / SECOND_NS


def cut(knees: dict[ModelName, int], loads: dict[ModelName, float], spec: ServingDevice) -> list[Slice]:
    """Divide a device among models in the ratio of their knees, into shares that it offers.

    Where there are more models than smallest shares, those with the smallest loads take turns.

    Returns
    -------
    list of Slice
        Their units are together at most those of the device.
    """
    shares = spec.shares
    most = spec.units // shares[0]
    parts: list[Slice] = []
    for name in sorted(knees, key=lambda name: -loads[name]):
        if len(parts) < most:
            parts.append(Slice(shares[0], [name], knees[name]))
        else:
            least = min(parts, key=lambda part: sum(loads[other] for other in part.models))
            least.models.append(name)
            least.knee = max(least.knee, knees[name])
    left = spec.units - sum(part.units for part in parts)
    while True:  # the slice that has least of what it would like grows by one step, as long as there is room
        growing = [
            (part.units / part.knee, index, larger)
            for index, part in enumerate(parts)
            if (larger := next((share for share in shares if share > part.units), None)) is not None
            and larger - part.units <= left
        ]
        if not growing:
            return parts
        _, index, larger = min(growing)
        left -= larger - parts[index].units
        parts[index].units = larger
