"""How much of the devices is demanded, and how much of it each model gets when that is too much."""

from __future__ import annotations

from collections.abc import Collection

from polymux.core.serving.model import ModelName
from polymux.policy.serving.spacetime.fairness import divide
from polymux.policy.serving.spacetime.lane import Lane

_QUIET, _BUSY = 0.15, 0.45
"""Parts of the devices that are demanded: up to the first, batches start as soon as possible; from the second on, as
late as they may."""
_PACKED = 0.9
_PACKED_LEAST, _PACKED_MOST, _PACKED_ALL = 0.78, 0.97, 1.1
"""Bounds of what can be reserved; the last one where all models want more than they get."""
_PACKED_LESS, _PACKED_MORE = 0.015, 0.004
_REFUSED = 0.02
"""Models that should get all they demand may have this part refused before less is reserved for the others."""
_SHORTER = 0.75
"""An SLO that is this part of another or less is the shorter one, for which the other leaves room."""


class Budget:
    """What is demanded and given.

    Attributes
    ----------
    load : float
        Part of the devices that is demanded, at the cheapest points.
    patience : float
        0: batches start as soon as possible; 1: when they are full or have to.
    packed : float
        How much of the devices can be reserved, as batches of many shapes leave gaps between them; learned.
    """

    def __init__(self) -> None:
        self.load = 0.0
        self.patience = 0.0
        self.packed = _PACKED

    def weigh(self, lanes: Collection[Lane], devices: int) -> None:
        """Work out how much is demanded, how long to collect batches, and who gets how much when it is too much."""
        demands: dict[ModelName, float] = {}
        by_name: dict[ModelName, Lane] = {}
        for lane in lanes:
            best = lane.best
            if best is not None and lane.rate_per_ns:
                name = lane.model.name
                by_name[name] = lane
                demands[name] = lane.rate_per_ns * best.cost_ns
                lane.period_ns = best.batch / lane.rate_per_ns
        capacity = devices or 1
        self.load = sum(demands.values()) / capacity
        self.patience = min(1.0, max(0.0, (self.load - _QUIET) / (_BUSY - _QUIET)))
        self._learn(lanes)
        for lane in lanes:
            lane.was_limited, lane.limited = lane.limited, False
        if self.load > self.packed:
            weights = {name: lane.model.weight for name, lane in by_name.items()}
            priorities = {name: lane.model.priority for name, lane in by_name.items()}
            given = divide(self.packed * capacity, demands, weights, priorities)
            for name, part in given.items():
                lane = by_name[name]
                if part < 0.999 * demands[name] and lane.best is not None:
                    lane.limited, lane.part = True, max(part, 1e-9)
                    lane.period_ns = lane.best.batch * lane.best.cost_ns / lane.part
            demands = given
        self._keep_room(by_name, demands, capacity)

    def _learn(self, lanes: Collection[Lane]) -> None:
        arrived = refused = 0
        for lane in lanes:
            if not (lane.limited or lane.was_limited):
                arrived += lane.seen_items
                refused += lane.refused_items
            lane.seen_items = lane.refused_items = 0
        if refused > _REFUSED * arrived:
            self.packed = max(_PACKED_LEAST, self.packed - _PACKED_LESS)
        elif self.load > self.packed:
            most = _PACKED_MOST if arrived else _PACKED_ALL
            self.packed = min(max(most, self.packed - _PACKED_LESS), self.packed + _PACKED_MORE)

    @staticmethod
    def _keep_room(lanes: dict[ModelName, Lane], given: dict[ModelName, float], capacity: int) -> None:
        """Have models with long deadlines leave room for those with shorter ones, whose requests are yet to come."""
        ordered = sorted(given, key=lambda name: lanes[name].model.slo_ns)
        shorter, total = 0, 0.0
        for name in ordered:
            lane = lanes[name]
            while lanes[ordered[shorter]].model.slo_ns <= _SHORTER * lane.model.slo_ns:
                total += given[ordered[shorter]]
                shorter += 1
            lane.headroom = total / capacity
