"""Latency surfaces as arrays, by share and number of requests."""

from __future__ import annotations

import numpy as np

from polymux.core.serving.model import LatencySurface
from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.work import Floats


class LatencyTables:
    """The request latencies of all demands on all kinds, each surface read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, int], tuple[LatencySurface, Floats]] = {}

    def table(self, demand: Demand, kind: DeviceKind) -> Floats:
        """Time of a batch of 1, 2, ... requests on each share of a kind that the demand can use."""
        surface = demand.surfaces[kind.name]
        key = (id(surface), kind.name, demand.items)
        if key not in self._known:
            self._known[key] = (surface, request_latencies(surface, kind, demand.items))
        return self._known[key][1]


def request_latencies(surface: LatencySurface, kind: DeviceKind, items: int) -> Floats:
    """Time of a batch of 1, 2, ... requests on each share; shape (shares, requests), rising in the requests."""
    most = max(1, surface.max_batch // items)
    table = [[surface.latency_ns(share, n * items) for n in range(1, most + 1)] for share in kind.shares]
    return np.asarray(np.maximum.accumulate(np.array(table, np.float64), axis=1))
