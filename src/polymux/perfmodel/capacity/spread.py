"""Spreads demands evenly over a given number of devices, whether or not they are enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.capacity.bound import request_cost
from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.latency_tables import LatencyTables
from polymux.perfmodel.capacity.pack import check_names
from polymux.perfmodel.capacity.placement import Lane, PlacedDevice, Replica
from polymux.perfmodel.capacity.work import Floats

_LARGEST_PIECES = (0.5, 2.0, inf)
"""Of an even part of the load, that one model puts on one device; the next one where memory does not suffice."""
_IDLE = 1e-9


@dataclass(slots=True)
class Assigned:
    """The models of one device, and the requests per second of each that go to it."""

    kind: str
    rates_per_s: dict[str, float] = field(default_factory=dict)


def spread(demands: Sequence[Demand], kinds: Sequence[DeviceKind]) -> list[Assigned]:
    """Put each demand on some of the devices so that all are about equally loaded.

    Parameters
    ----------
    demands : sequence of Demand
    kinds : sequence of DeviceKind
        Each with the number of its devices as `limit`.

    Returns
    -------
    list of Assigned
        One for each device, in the order of the kinds. Every demand is on at least one.

    Raises
    ------
    InvalidRequest
        If a model has no surface for any of the devices, or the memory does not suffice.

    Notes
    -----
    The largest demands come first. One that is more than half of an even part is divided among several devices; each
    piece goes to the device that is then loaded least. Where the memory does not suffice for that, demands are divided
    less, and at last those with the largest weights come first.

    References
    ----------
    Graham, Bounds on multiprocessing timing anomalies, SIAM J. Applied Mathematics 17 (1969): longest processing time
    first.
    """
    check_names(demands, kinds)
    if not sum(kind.limit or 0 for kind in kinds):
        raise InvalidRequest("a placement needs at least one device; give the kinds a number of devices")
    tables = LatencyTables()
    costs = {demand.model: _costs(demand, kinds, tables) for demand in demands}
    least = {demand.model: demand.rate_per_s * float(costs[demand.model].min()) for demand in demands}
    by_load = sorted(demands, key=lambda demand: -least[demand.model])
    by_memory = sorted(by_load, key=lambda demand: -demand.memory_nbytes)
    attempts = [(by_load, piece) for piece in _LARGEST_PIECES] + [(by_memory, inf)]
    problem: InvalidRequest | None = None
    for order, piece in attempts:
        devices = _Devices(kinds)
        largest = max(piece * sum(least.values()) / len(devices.found), _IDLE)
        try:
            for demand in order:
                pieces = min(len(devices.found), max(1, ceil(least[demand.model] / largest)))
                devices.put(demand, costs[demand.model], pieces)
        except InvalidRequest as too_little:
            problem = too_little
            continue
        return devices.found
    raise problem or AssertionError("unreachable: there is an attempt")


def undivided(demands: Sequence[Demand], kind: DeviceKind, count: int) -> list[PlacedDevice]:
    """Spread demands over some devices of one kind that are not divided into lanes.

    Returns
    -------
    list of PlacedDevice
        Each replica with the batch and the part of the device's time of its cheapest batches within half the SLO.

    Raises
    ------
    InvalidRequest
        As `spread`.
    """
    tables = LatencyTables()
    costs = {demand.model: _costs(demand, [replace(kind, limit=count)], tables)[0] for demand in demands}
    batches = {demand.model: _batch(demand, tables.table(demand, kind)) for demand in demands}
    longest_ns = max(demand.slo_ns for demand in demands)
    return [
        PlacedDevice(
            kind.name,
            kind.units,
            (
                Lane(
                    kind.units,
                    tuple(
                        Replica(name, rate, batches[name], rate * float(costs[name]))
                        for name, rate in device.rates_per_s.items()
                    ),
                    longest_ns,
                ),
            ),
            free=True,
        )
        for device in spread(demands, [replace(kind, limit=count)])
        if device.rates_per_s
    ]


def _batch(demand: Demand, latencies_ns: Floats) -> int:
    """Largest batch, in items, that some share runs within half the SLO; at least one request."""
    within = np.flatnonzero(latencies_ns.min(axis=0) <= demand.slo_ns / 2)
    return (int(within[-1]) + 1 if within.size else 1) * demand.items


class _Devices:
    def __init__(self, kinds: Sequence[DeviceKind]) -> None:
        counts = [kind.limit or 0 for kind in kinds]
        self.found = [
            Assigned(kind.name) for kind, count in zip(kinds, counts, strict=True) for _ in range(count)
        ]
        self._kind = np.repeat(np.arange(len(kinds)), counts)
        self._load = np.zeros(len(self.found))
        memory = np.array([float(kind.memory_nbytes or np.inf) for kind in kinds])
        self._memory = memory[self._kind]

    def put(self, demand: Demand, costs: NDArray[np.float64], pieces: int) -> None:
        """Put a demand on so many devices, or on fewer if no more have the memory."""
        added = np.maximum(costs[self._kind] * demand.rate_per_s / pieces, _IDLE)
        usable = np.isfinite(costs[self._kind]) & (self._memory >= demand.memory_nbytes)
        candidates = np.flatnonzero(usable)
        if not candidates.size:
            raise InvalidRequest(
                f"model {demand.model}: none of the {len(self.found)} devices has {demand.memory_nbytes} bytes of"
                " memory left for it; give more devices, or larger ones"
            )
        order = np.argsort((self._load + added)[candidates], kind="stable")
        chosen = candidates[order[:pieces]]
        for device in chosen.tolist():
            self.found[device].rates_per_s[demand.model] = demand.rate_per_s / len(chosen)
        self._load[chosen] += added[chosen] * (pieces / len(chosen))
        self._memory[chosen] -= demand.memory_nbytes


def _costs(demand: Demand, kinds: Sequence[DeviceKind], tables: LatencyTables) -> NDArray[np.float64]:
    """Device time of a request on each kind, in batches that are done within half the SLO if there are any."""
    found = np.full(len(kinds), np.inf)
    for index, kind in enumerate(kinds):
        if kind.name in demand.surfaces and kind.limit:
            table = tables.table(demand, kind)
            options = (
                request_cost(kind, table, within) for within in (demand.slo_ns / 2, demand.slo_ns, np.inf)
            )
            found[index] = next(cost for cost in options if np.isfinite(cost)) / kind.cost
    if not np.isfinite(found).any():
        raise InvalidRequest(
            f"model {demand.model}: it has no surface for any of the devices"
            f" ({', '.join(kind.name for kind in kinds if kind.limit)}); give one"
        )
    return found
