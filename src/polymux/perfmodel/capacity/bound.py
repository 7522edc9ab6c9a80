"""How many devices no placement can do without: what a found one is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.latency_tables import LatencyTables
from polymux.perfmodel.capacity.work import NS_PER_S, Floats

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Bound:
    """The least that any placement costs, for one reason each; with kinds of cost 1 a number of devices.

    Parameters
    ----------
    compute : float
        The work at the best batch and share of each model, whatever the deadlines.
    deadlines : float
        The same with batches that are done within the SLO.
    memory : float
        All weights once.
    """

    compute: float
    deadlines: float
    memory: float

    @property
    def least(self) -> float:
        """The largest of them."""
        return max(self.compute, self.deadlines, self.memory)

    def devices(self, kinds: Sequence[DeviceKind]) -> int:
        """Least number of devices, of whatever kind."""
        dearest = max(kind.cost for kind in kinds)
        return max(1, ceil(self.least / dearest - _ROUNDING))


def bound(demands: Sequence[Demand], kinds: Sequence[DeviceKind], attainment: float = 1.0) -> Bound:
    """Bound the cost of any placement from below.

    Parameters
    ----------
    demands : sequence of Demand
    kinds : sequence of DeviceKind
        With limits disregarded.
    attainment : float
        Part of the requests that has to be answered in time; the others need no work.

    Returns
    -------
    Bound
        Demands that no kind can serve count nothing.

    Notes
    -----
    A batch of b items on p of U units for a time L takes p x L of a device's U units; so a request costs at least the
    minimum of p x L(p, b) / (b x U) of a device's time, over all p and b that are allowed, and over the kinds.
    """
    tables = LatencyTables()
    compute = deadlines = memory = 0.0
    for demand in demands:
        able = [kind for kind in kinds if kind.name in demand.surfaces]
        free, in_time = (
            min((request_cost(kind, tables.table(demand, kind), within) for kind in able), default=np.inf)
            for within in (np.inf, demand.slo_ns)
        )
        compute += _finite(free) * demand.rate_per_s * attainment
        deadlines += _finite(in_time) * demand.rate_per_s * attainment
        per_byte = [kind.cost / kind.memory_nbytes if kind.memory_nbytes else 0.0 for kind in able]
        memory += min(per_byte, default=0.0) * demand.memory_nbytes
    return Bound(compute, deadlines, memory)


def request_cost(kind: DeviceKind, latencies_ns: Floats, within_ns: float = np.inf) -> float:
    """Cost of the part of a device's second that a request takes at least, in batches done within a time."""
    batches = np.arange(1, latencies_ns.shape[1] + 1)
    shares = np.array(kind.shares, np.float64)[:, None]
    costs = shares * latencies_ns / (batches * (kind.units * NS_PER_S)) * kind.cost
    return float(np.where(latencies_ns <= within_ns, costs, np.inf).min())


def _finite(value: float) -> float:
    return value if np.isfinite(value) else 0.0
