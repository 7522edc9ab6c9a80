"""What the policy knows of one model: its rate, the batches worth forming on each device, its slots."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import sqrt

from polymux.core.ids import DeviceId
from polymux.core.serving.model import LatencySurface, ServedModel, ServingDevice
from polymux.policy.serving.knee_search import LearnedSurface
from polymux.policy.serving.spacetime.pace import Pace
from polymux.policy.serving.spacetime.slot import Board, Slot

_JITTER = 0.12
"""Part of an SLO that is not planned for collecting and running a batch, because units are not free at once."""
_SAME_RATE, _SAME_PACE = 0.05, 0.03
"""Relative changes that are too small to work the points out anew."""
_BURST = 1.3
"""Batches so many times as large as could be collected at this rate show that requests come in bursts."""
_SELDOM = 0.8
"""Items that are expected within an SLO: with fewer, batches have one item whatever the rate is."""
_LONG = 0.1
"""How much dearer a batch counts that takes a whole SLO: long batches leave less choice to what comes after them."""
_POINTS = 10
"""Shares that are considered for a batch, the cheapest."""


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

    Attributes
    ----------
    slots : list of Slot
        Its reserved batches; they start and end in this order.
    points : dict of DeviceId to list of Point
        The cheapest first.
    shares : dict of DeviceId to list of int
        On which it may run, whether or not it is fast enough there.
    best : Point or None
        The cheapest of all devices.
    rate_per_ns : float
        Items that arrive, refused ones too.
    period_ns : float
        Between the starts of batches.
    last_start : int
    closed_before, closed_version : int
        Requests with an earlier deadline cannot be met, as long as the plan has this version.
    headroom : float
        Part of each device that its slots leave to models with shorter deadlines.
    limited, part, paid_until : bool, float, int
        Whether it demands more than it can be given; how much of one device that is; from when on it may start again.
    learned : dict of str to LearnedSurface
        By kind of device, where the model has no surface.
    usual_items : float
        Of its batches lately.
    in_bursts : bool
        Whether that is more than could be collected at this rate: requests come together, and nothing is waited for.
    seen_items, refused_items, arrived_items : int
        Since they were last looked at.
    """

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.pace = Pace(model.slo_ns)
        self.slots: list[Slot] = []
        self.points: dict[DeviceId, list[Point]] = {}
        self.shares: dict[DeviceId, list[int]] = {}
        self.best: Point | None = None
        self.rate_per_ns = model.rate_per_s / 1e9
        self.period_ns = 0.0
        self.last_start = -(1 << 62)
        self.closed_before = 0
        self.closed_version = -1
        self.headroom = 0.0
        self.limited = self.was_limited = False
        self.part = 1.0
        self.paid_until = 0
        self.seen_items = self.refused_items = self.arrived_items = 0
        self.learned: dict[str, LearnedSurface] = {}
        self._times: dict[tuple[str, int], tuple[list[int], float]] = {}
        self._points: dict[tuple[DeviceId, int], Point | None] = {}
        self.usual_items = 0.0
        self.in_bursts = False
        self._tuned = (0.0, 0.0, 0.0, 0.0)

    def update(self, model: ServedModel) -> None:
        """Take over what has changed about the model."""
        if model.surfaces != self.model.surfaces or model.slo_ns != self.model.slo_ns:
            self.pace = Pace(model.slo_ns)
        self.model = model
        self.stale()

    def stale(self) -> None:
        """Have everything that follows from surfaces, rate and pace worked out anew."""
        self._times.clear()
        self.untune()

    def untune(self) -> None:
        """Have the points worked out anew."""
        self._tuned = (0.0, 0.0, 0.0, 0.0)

    def surface(self, kind: str) -> LatencySurface:
        """What says how long a batch takes on a kind of device, or what has been learned of that."""
        known = self.model.surfaces.get(kind)
        return self.learned[kind] if known is None else known

    def max_batch(self, kind: str) -> int:
        """Most items of a batch."""
        return self.surface(kind).max_batch

    def expected_ns(self, kind: str, units: int, items: int) -> int:
        """How long a batch takes, by the surface and what was measured."""
        known = self._times.get((kind, units))
        table, factor = self._load(kind, units) if known is None else known
        if items > len(table):
            return int(self.surface(kind).latency_ns(units, items) * factor) + 1
        return int(table[items - 1] * factor) + 1

    def measure(self, kind: str, units: int, items: int, took_ns: int, now: int) -> None:
        """Note how long a batch took."""
        self.pace.measure(units, took_ns / self.surface(kind).latency_ns(units, items), now - took_ns, now)
        self._times = {key: (table, self.pace.factor(key[1])) for key, (table, _) in self._times.items()}

    def spread_ns(self, batch_ns: int, before_ns: float) -> float:
        """Standard deviation of the end of a batch, when that of its start is `before_ns`: they are independent."""
        own_ns = self.pace.spread * batch_ns
        return sqrt(own_ns * own_ns + before_ns * before_ns) if before_ns else own_ns

    def overrun(self, kind: str, units: int, items: int, passed_ns: int, now: int) -> bool:
        """Note that a batch runs for longer than expected; say whether it is so much longer that this is news."""
        if kind not in self.model.surfaces:
            return False
        return self.pace.overrun(units, passed_ns / self.surface(kind).latency_ns(units, items), now)

    @property
    def is_stale(self) -> bool:
        """Whether rate or pace have changed so much that the points are to be worked out anew."""
        rate, pace, spread = self.rate_per_ns, self.pace.factor(0), self.pace.spread
        old_rate, old_pace, old_spread, old_items = self._tuned
        seldom = 0 < max(rate, old_rate) * self.model.slo_ns < _SELDOM
        return (
            abs(pace - old_pace) > _SAME_PACE * old_pace
            or abs(spread - old_spread) > max(0.01, 0.2 * old_spread)
            or (abs(rate - old_rate) > _SAME_RATE * old_rate and not seldom)
            or abs(self.usual_items - old_items) > max(0.9, 0.15 * old_items)
        )

    def tune(self, ready: Mapping[DeviceId, tuple[Board, Collection[int]]]) -> None:
        """Work out which batches are worth forming on which shares."""
        rate, pace, spread = self.rate_per_ns, self.pace.factor(0), self.pace.spread
        self._tuned = (max(rate, 1e-18), pace, spread, self.usual_items)
        self.points = {}
        self._points.clear()
        self.shares = {device_id: sorted(shares) for device_id, (_, shares) in ready.items() if shares}
        self.in_bursts = False
        for device_id, (board, shares) in ready.items():
            points = [point for units in sorted(shares) if (point := self._known_point(board, units))]
            if points:
                points.sort(key=lambda point: point.cost_ns * (1 + _LONG * point.ns / self.model.slo_ns))
                self.points[device_id] = points[:_POINTS]
        firsts = [points[0] for points in self.points.values()]
        self.best = min(firsts, key=lambda point: point.cost_ns, default=None)
        self.closed_version = -1

    def smaller(self, points: list[Point], part: float, items: int, device: ServingDevice) -> list[Point]:
        """The same shares with a part of the batch, but at least `items`; the cheapest first."""
        made = []
        for point in points:
            batch = max(1, items, int(part * point.batch))
            if batch < point.batch:
                took = self.expected_ns(device.kind, point.units, batch)
                made.append(Point(point.units, batch, took, took * point.units / device.units / batch))
        return sorted(made, key=lambda point: point.cost_ns)

    def enlarged(self, point: Point, items: int, device: ServingDevice) -> Point:
        """The same share with a batch of more items."""
        took = self.expected_ns(device.kind, point.units, items)
        return Point(point.units, items, took, took * point.units / device.units / items)

    def cheapest(self, board: Board, shares: Collection[int]) -> Point | None:
        """The share of these on which an item costs least; None: none of them is fast enough."""
        points = [point for units in sorted(shares) if (point := self._known_point(board, units))]
        return min(points, key=lambda point: point.cost_ns, default=None)

    def _load(self, kind: str, units: int) -> tuple[list[int], float]:
        surface = self.surface(kind)
        table = [surface.latency_ns(units, batch) for batch in range(1, surface.max_batch + 1)]
        self._times[kind, units] = made = table, self.pace.factor(units)
        return made

    def _known_point(self, board: Board, units: int) -> Point | None:
        key = (board.spec.id, units)
        if key not in self._points:
            self._points[key] = self._point(board, units)
        return self._points[key]

    def _point(self, board: Board, units: int) -> Point | None:
        """Largest batch that can be collected and run within the SLO."""
        device = board.spec
        kind, slo_ns, rate = device.kind, self.model.slo_ns, self.rate_per_ns
        usable_ns = slo_ns * (1 - _JITTER)
        known = self._times.get((kind, units))
        table, factor = self._load(kind, units) if known is None else known
        alone_ns = int(table[0] * factor) + 1
        if alone_ns + board.margin_ns(alone_ns, self.spread_ns(alone_ns, 0.0)) > slo_ns:
            return None
        low, high = 1, min(len(table), 1 + int(rate * max(0.0, usable_ns - alone_ns)))
        margin_ns, spread_ns, typical_ns = board.margin_ns, self.spread_ns, board.typical_ns
        while low < high:
            middle = (low + high + 1) // 2
            took = int(table[middle - 1] * factor) + 1
            if middle <= 1 + rate * (usable_ns - took - margin_ns(took, spread_ns(took, typical_ns))):
                low = middle
            else:
                high = middle - 1
        took = int(table[low - 1] * factor) + 1
        if self.usual_items > _BURST * low + 1:  # requests come in bursts: there is no need to collect them
            burst = min(self.max_batch(kind), int(self.usual_items + 0.5))
            longer = self.expected_ns(kind, units, burst)
            if longer + board.margin_ns(longer, self.spread_ns(longer, 0.0)) <= slo_ns:
                low, took = burst, longer
                self.in_bursts = True
        return Point(units, low, took, took * units / device.units / low)
