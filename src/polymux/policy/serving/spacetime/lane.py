"""What the policy knows of one model: its rate, the batches worth forming on each device, its slots."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import sqrt

from polymux.core.ids import DeviceId
from polymux.core.serving.model import LatencySurface, ServedModel, ServingDevice
from polymux.policy.serving.spacetime.guess import GuessedSurface
from polymux.policy.serving.spacetime.pace import Pace
from polymux.policy.serving.spacetime.slot import Slot

_CERTAINTY = 3.5
"""Standard deviations that are kept as a margin: with normal variation 0.02 % take longer."""
_LEAST_MARGIN = 0.002
_JITTER = 0.08
"""Part of an SLO that is not planned for collecting and running a batch, because units are not free at once."""


@dataclass(slots=True)
class Point:
    """A share with the batch that is worth forming on it.

    Parameters
    ----------
    units : int
    batch : int
        Items.
    ns : int
        How long it takes.
    cost_ns : float
        Time of the whole device for one item.
    """

    units: int
    batch: int
    ns: int
    cost_ns: float


class Lane:
    """A model.

    Parameters
    ----------
    model : ServedModel
    """

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.pace = Pace(model.slo_ns)
        self.slots: list[Slot] = []
        self.points: dict[DeviceId, list[Point]] = {}
        self.rate_per_ns = model.rate_per_s / 1e9
        self.period_ns = 0.0
        """Between the starts of batches."""
        self.headroom = 0.0
        """Part of each device that its slots leave to models with shorter deadlines."""
        self.limited = False
        """Whether it demands more than it can be given; its batches then keep the period."""
        self.last_start = -(1 << 62)
        self.closed_before = 0
        """Requests with an earlier deadline cannot be met, as far as is known."""
        self.closed_version = -1
        self.arrived_items = 0
        self._tables: dict[tuple[str, int], list[int]] = {}
        self._tuned: tuple[float, float, float] = (-1.0, -1.0, -1.0)

    def update(self, model: ServedModel) -> None:
        """Take over what has changed about the model."""
        if model.surfaces != self.model.surfaces or model.slo_ns != self.model.slo_ns:
            self._tables.clear()
            self.pace = Pace(model.slo_ns)
        self.model = model
        self.stale()

    def stale(self) -> None:
        """Have the points worked out anew."""
        self._tuned = (-1.0, -1.0, -1.0)

    def surface_of(self, kind: str) -> LatencySurface:
        """What says how long a batch takes on a kind of device, or a guess."""
        known = self.model.surfaces.get(kind)
        return GuessedSurface(self.model.slo_ns, self.model.max_batch) if known is None else known

    def surface_ns(self, kind: str, units: int, items: int) -> int:
        """How long a batch takes by the surface."""
        table = self._tables.get((kind, units))
        if table is None:
            surface = self.surface_of(kind)
            table = self._tables[kind, units] = [
                surface.latency_ns(units, batch) for batch in range(1, surface.max_batch + 1)
            ]
        if items <= len(table):
            return table[items - 1]
        return self.surface_of(kind).latency_ns(units, items)

    def expected_ns(self, kind: str, units: int, items: int) -> int:
        """How long a batch takes, by the surface and what was measured."""
        return int(self.surface_ns(kind, units, items) * self.pace.factor(units)) + 1

    def max_batch(self, kind: str) -> int:
        """Most items of a batch."""
        return self.surface_of(kind).max_batch

    def margin_ns(self, batch_ns: int, ahead_ns: int) -> int:
        """What may be needed beyond the expected time until a batch has ended, `ahead_ns` from now.

        Until then about ``ahead_ns / batch_ns`` batches run one after the other, and their variations add up as
        independent ones do.
        """
        spread = self.pace.spread
        return int(_LEAST_MARGIN * batch_ns + _CERTAINTY * spread * sqrt(batch_ns * max(ahead_ns, batch_ns)))

    def tune(self, ready: Mapping[DeviceId, tuple[ServingDevice, Collection[int]]]) -> bool:
        """Work out which batches are worth forming, if the rate or the pace have changed; say whether it was done."""
        now = (self.rate_per_ns, self.pace.factor(0), self.pace.spread)
        if all(abs(new - old) <= 0.05 * old for new, old in zip(now, self._tuned, strict=True)):
            return False
        self._tuned = now
        self.points = {}
        for device_id, (device, shares) in ready.items():
            if shares:
                points = [point for units in sorted(shares) if (point := self._point(device, units))]
                if points:
                    self.points[device_id] = sorted(points, key=lambda point: (point.cost_ns, -point.units))
        self.closed_version = -1
        return True

    def _point(self, device: ServingDevice, units: int) -> Point | None:
        """Largest batch that can be collected and run within the SLO."""
        kind, slo_ns, rate = device.kind, self.model.slo_ns, self.rate_per_ns
        usable_ns = slo_ns * (1 - _JITTER)

        def fits(batch: int) -> bool:
            took = self.expected_ns(kind, units, batch)
            return batch <= 1 + rate * (usable_ns - took - self.margin_ns(took, took))

        alone_ns = self.expected_ns(kind, units, 1)
        if alone_ns + self.margin_ns(alone_ns, alone_ns) > slo_ns:
            return None
        low, high = 1, self.max_batch(kind)
        while low < high:
            middle = (low + high + 1) // 2
            if fits(middle):
                low = middle
            else:
                high = middle - 1
        took = self.expected_ns(kind, units, low)
        return Point(units, low, took, took * units / device.units / low)

    @property
    def best(self) -> Point | None:
        """The cheapest point of all devices."""
        return min(
            (points[0] for points in self.points.values()), key=lambda point: point.cost_ns, default=None
        )
