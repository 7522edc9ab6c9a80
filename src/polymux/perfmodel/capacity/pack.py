"""Fills as few devices as it can with the demands: bin packing on latency surfaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.capacity.bins import Bins, Portion
from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.latency_tables import LatencyTables
from polymux.perfmodel.capacity.placement import Placement, Unplaced
from polymux.perfmodel.capacity.work import Floats, Work, WorkModel, cycle_lengths

Progress = Callable[[int, int], None]
"""Is told how many of how many demands have been placed."""

_SMALL = 200
_FEW_DEVICES = 500
_POINTS_SMALL, _POINTS_LARGE = 128, 64


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to fill.

    Parameters
    ----------
    whole : bool
        A share counts as the part of a device that it takes when the device is cut into equal lanes of it: 40 % as a
        half. Otherwise as it is: 40 % as 40 %.
    patience : float
        A portion goes into a lane if that takes at most so many times what it would take alone.
    """

    whole: bool
    patience: float


_WAYS = tuple(_Way(whole, patience) for whole in (True, False) for patience in (1.2, 2.0, np.inf))
_WAY_OF_LARGE = _Way(True, 2.0)


def pack(
    demands: Sequence[Demand],
    kinds: Sequence[DeviceKind],
    *,
    caution: float = 1.0,
    headroom: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Placement:
    """Place demands on as few (or as cheap) devices as this finds.

    Parameters
    ----------
    demands : sequence of Demand
        With different names.
    kinds : sequence of DeviceKind
        What may be used; with different names.
    caution : float
        Standard deviations of the work of a cycle for which each lane keeps time free.
    headroom : mapping of str to float, optional
        By model: it is planned for so many times its rate; 1 where nothing is said.
    progress : callable, optional

    Returns
    -------
    Placement
        What cannot be placed (no share is fast enough, no memory, a limit of devices reached) is in `unplaced`.

    Raises
    ------
    InvalidRequest
        If there are no kinds, or names are given twice.

    Notes
    -----
    A demand larger than what one lane takes first gets full lanes of the share that carries most per unit; what is
    left over, and smaller demands, go from the largest to the smallest into the lane of which they take least, or into
    a new lane where units are left, or onto a new device. Up to 200 demands on up to 500 devices several ways of it are
    tried and the cheapest is kept; beyond that, one: 10,000 demands on 1,000 devices take some ten seconds. Not more
    than 10,000 devices of a kind are used.

    References
    ----------
    Shen et al., Nexus, SOSP 2019, section 6.1 (squishy bin packing); Choi et al., Serving heterogeneous machine
    learning models on multi-GPU servers with spatio-temporal sharing (gpulets), ATC 2022.
    """
    check_names(demands, kinds)
    if not demands:
        return Placement(())
    packing = _Packing(demands, kinds, caution, headroom or {})
    found = [packing.run(_WAY_OF_LARGE, progress)]
    if len(demands) <= _SMALL and len(found[0].devices) <= _FEW_DEVICES:
        found += [packing.run(way, progress) for way in _WAYS if way != _WAY_OF_LARGE]
    return min(found, key=packing.cost)


def check_names(demands: Sequence[Demand], kinds: Sequence[DeviceKind]) -> None:
    """Check that there are kinds, and that no name is given twice."""
    if not kinds:
        raise InvalidRequest("a placement needs at least one kind of device")
    for what, names in (("model", [d.model for d in demands]), ("kind of device", [k.name for k in kinds])):
        if len(set(names)) < len(names):
            seen: set[str] = set()
            twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise InvalidRequest(f"{what} {twice!r} is given twice; name each differently")


class _Packing:
    """What all ways of packing the same demands have in common."""

    def __init__(
        self,
        demands: Sequence[Demand],
        kinds: Sequence[DeviceKind],
        caution: float,
        headroom: Mapping[str, float],
    ) -> None:
        self._demands, self._kinds, self._caution = demands, kinds, caution
        tables = LatencyTables()
        points = _POINTS_SMALL if len(demands) <= _SMALL else _POINTS_LARGE
        self._cycles: dict[str, Floats] = {}
        self._options: dict[str, dict[str, _Option]] = {demand.model: {} for demand in demands}
        for kind in kinds:
            able = [demand for demand in demands if kind.name in demand.surfaces]
            if not able:
                continue
            latencies = [tables.table(demand, kind) for demand in able]
            cycles = self._cycles[kind.name] = cycle_lengths(able, latencies, points)
            for demand, table in zip(able, latencies, strict=True):
                planned = demand.rate_per_s * headroom.get(demand.model, 1.0)
                model = WorkModel(demand, kind, cycles, table, planned)
                if model.feasible:
                    self._options[demand.model][kind.name] = _Option(model, kind, planned, cycles, caution)

    def cost(self, placement: Placement) -> tuple[float, float, float]:
        """Of a placement, to be compared: what it leaves out, then its devices, then how full the least one is."""
        left = sum(max(missing.rate_per_s, 1e-9) for missing in placement.unplaced)
        costs = {kind.name: kind.cost for kind in self._kinds}
        total = sum(costs[device.kind] for device in placement.devices)
        return left, total, min((device.busy for device in placement.devices), default=0.0)

    def run(self, way: _Way, progress: Progress | None) -> Placement:
        bins = {
            kind.name: Bins(kind, self._cycles[kind.name], self._caution)
            for kind in self._kinds
            if kind.name in self._cycles
        }
        unplaced: list[Unplaced] = []
        order = sorted(self._demands, key=lambda demand: -self._size(demand, way))
        for done, demand in enumerate(order):
            if progress is not None:
                progress(done, len(order))
            left = self._place(demand, bins, way)
            if left is not None:
                unplaced.append(left)
        for each in bins.values():
            each.widen()
        return Placement(tuple(device for each in bins.values() for device in each.placed()), tuple(unplaced))

    def _size(self, demand: Demand, way: _Way) -> float:
        """Devices' cost that a demand takes alone, where it is cheapest."""
        return min((option.price(way) for option in self._options[demand.model].values()), default=0.0)

    def _place(self, demand: Demand, bins: dict[str, Bins], way: _Way) -> Unplaced | None:
        options = sorted(self._options[demand.model].items(), key=lambda item: item[1].price(way))
        options = [(name, option) for name, option in options if bins[name].fits_memory(demand)]
        left, reason = demand.rate_per_s, self._why_not(demand)
        for name, option in options:
            left = option.place(demand, left, bins[name], way)
            if left <= 0:
                return None
            limit = bins[name].limit
            reason = f"all {limit} devices of kind {name} that there may be are full"
        return Unplaced(demand.model, max(left, 0.0), reason)

    def _why_not(self, demand: Demand) -> str:
        able = [kind for kind in self._kinds if kind.name in demand.surfaces]
        if not able:
            return f"it has no surface for any of: {', '.join(kind.name for kind in self._kinds)}"
        if not self._options[demand.model]:
            return f"its SLO of {demand.slo_ns / 1e6:g} ms is less than twice the time of its shortest run"
        most = max(kind.memory_nbytes for kind in able)
        return f"its {demand.memory_nbytes} bytes of memory are more than the {most} of a device"


class _Option:
    """A demand on one kind of device."""

    def __init__(
        self, model: WorkModel, kind: DeviceKind, planned_per_s: float, cycles_ns: Floats, caution: float
    ) -> None:
        self._model, self._kind, self._planned, self._caution = model, kind, planned_per_s, caution
        shares = np.array(kind.shares, np.float64)
        self._parts = {True: 1.0 / (kind.units // shares), False: shares / kind.units}
        work = model.work(planned_per_s)
        lanes = work.load(cycles_ns, 0.0)  # how many lanes of each share it takes alone
        self._capacity: Floats | None = None
        if any(work.load(cycles_ns, caution)[(part * lanes).argmin()] > 1 for part in self._parts.values()):
            self._capacity = model.capacity_per_s(caution)
            with np.errstate(divide="ignore"):
                lanes = planned_per_s / self._capacity
        self._prices = {whole: float((part * lanes).min()) for whole, part in self._parts.items()}
        self._best = {whole: int((part * lanes).argmin()) for whole, part in self._parts.items()}
        if not planned_per_s:
            self._best = dict.fromkeys(self._best, model.narrowest())

    def price(self, way: _Way) -> float:
        """Devices that it takes alone, times their cost."""
        return self._prices[way.whole] * self._kind.cost

    def place(self, demand: Demand, rate_per_s: float, bins: Bins, way: _Way) -> float:
        """Put as much of a rate as fits; return what is left (0 or less: nothing)."""
        factor = self._planned / demand.rate_per_s if demand.rate_per_s else 1.0
        best = self._best[way.whole]
        if self._capacity is not None:
            full = float(self._capacity[best])
            while rate_per_s * factor > full:
                lane = self._new_lane(demand, bins, best)
                if lane is None:
                    break
                bins.put(lane, Portion(demand, self._model, full / factor, full), self._model.work(full))
                rate_per_s -= full / factor
        if rate_per_s > 0 or not demand.rate_per_s:
            rate_per_s = self._place_rest(demand, rate_per_s, factor, bins, way)
        return rate_per_s

    def _place_rest(self, demand: Demand, rate_per_s: float, factor: float, bins: Bins, way: _Way) -> float:
        planned = rate_per_s * factor
        work = self._model.work(planned)
        portion = Portion(demand, self._model, rate_per_s, planned)
        found = bins.find_lane(demand, work)
        alone = self._prices[way.whole] * self._kind.units * (planned / self._planned if planned else 1.0)
        if found is not None and found[1] <= way.patience * alone:
            bins.put(found[0], portion, work)
            return 0.0
        lane = self._gap(demand, work, bins)
        if lane is None and found is not None:
            lane = found[0]
        if lane is None:
            lane = self._new_lane(demand, bins, self._roomy(work, bins, way))
        if lane is None:
            return rate_per_s if demand.rate_per_s else 1e-12
        bins.put(lane, portion, work)
        return 0.0

    def _gap(self, demand: Demand, work: Work, bins: Bins) -> int | None:
        """A new lane on a used device, of the narrowest share that holds the work."""
        gap = bins.widest_gap(demand)
        load = lane_loads(work, bins, self._caution)
        for share, width in enumerate(self._kind.shares):
            if width > gap:
                return None
            if load[share] <= 1:
                device = bins.find_device(demand, width)
                return None if device is None else bins.add_lane(device, share)
        return None

    def _roomy(self, work: Work, bins: Bins, way: _Way) -> int:
        """The share at which the rest takes least of a device, and fits."""
        load = lane_loads(work, bins, self._caution)
        taken = np.where(load <= 1, self._parts[way.whole] * np.maximum(load, 1e-9), np.inf)
        return int(np.argmin(taken)) if np.isfinite(taken).any() else self._best[way.whole]

    def _new_lane(self, demand: Demand, bins: Bins, share: int) -> int | None:
        device = bins.find_device(demand, self._kind.shares[share])
        if device is None:
            if bins.is_full:
                return None
            device = bins.add_device()
        return bins.add_lane(device, share)


def lane_loads(work: Work, bins: Bins, caution: float) -> Floats:
    """Part of an empty lane of each share that the work takes; shape (shares,)."""
    return work.load(bins.cycles_ns, caution)
