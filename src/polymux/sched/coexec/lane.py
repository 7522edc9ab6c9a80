"""What one unit has to do in a co-execution, what it is at, and how fast it turns out to be."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from polymux.perfmodel.coexec.adapt import Chunk
from polymux.perfmodel.coexec.problem import Problem
from polymux.perfmodel.coexec.unit import Load, UnitModel

_SECOND_NS = 1e9
_SLOWEST = 64.0
_MOST_COSTS = 512
_FASTEST = 0.25
_WAITED = 2.0
_OVERDUE = 0.25
"""Part of its predicted time that a chunk, which should have ended, is taken to need still."""


@dataclass(slots=True)
class Taken:
    """A chunk that a unit is at, or has before it in its stream."""

    chunk: Chunk
    taken_ns: int
    stolen_from: str | None


@dataclass(slots=True)
class Lane:
    """A unit in a co-execution.

    Parameters
    ----------
    unit : UnitModel
    across : int
        Width of the second axis.
    fixed_s : float, s
        Of every chunk.
    each_s : float, s
        For each unit of the split axis, over all of the second one.
    first_s : float, s
        Before its first chunk: to copy what everybody reads.
    """

    unit: UnitModel
    across: int
    fixed_s: float
    each_s: float
    first_s: float
    ahead: deque[Chunk] = field(default_factory=deque)
    taken: deque[Taken] = field(default_factory=deque)
    factor: float = 1.0
    """How many times longer than predicted its last chunk took."""
    began_ns: int = 0
    """When the chunk that it is at began."""
    has_begun: bool = False
    has_ended: bool = False
    """Whether it has computed a chunk."""
    has_failed: bool = False

    def predicted_s(self, chunk: Chunk) -> float:
        """Time that was predicted for a chunk, in s."""
        return self.fixed_s + self.each_s * area(chunk, self.across)

    def now_factor(self, now_ns: int) -> float:
        """How many times longer than predicted it takes, by its last chunk and by how long it has been at this one."""
        if not self.taken:
            return self.factor
        predicted_ns = self.predicted_s(self.taken[0].chunk) * _SECOND_NS
        if not self.has_ended:
            predicted_ns += self.first_s * _SECOND_NS
        return min(_SLOWEST, max(self.factor, self._slowness((now_ns - self.began_ns) / predicted_ns)))

    def _slowness(self, ratio: float) -> float:
        """How much slower a unit is by how long a chunk took; where chunks overlap, one that waited says little."""
        if self.unit.link is not None and self.unit.link.overlaps and ratio < _WAITED:
            return 1.0
        return ratio

    def free_s(self, now_ns: int) -> float:
        """When it will have done what it has taken, from now, in s."""
        total, factor = 0.0, self.now_factor(now_ns)
        for place, its in enumerate(self.taken):
            needs = self.predicted_s(its.chunk) * factor
            if not place:
                needs = max(
                    needs - (now_ns - self.began_ns) / _SECOND_NS, _OVERDUE * self.predicted_s(its.chunk) / 4
                )
            total += needs
        return total

    def cost_s(self, now_ns: int) -> float:
        """Time for each unit of the split axis as it is now, in s."""
        return self.each_s * self.now_factor(now_ns)

    def start_s(self, now_ns: int) -> float:
        """What a chunk costs it besides, and before its first one, in s."""
        return self.fixed_s * self.now_factor(now_ns) + (0.0 if self.has_begun else self.first_s)

    def learn(self, chunk: Chunk, now_ns: int) -> None:
        """Note how long the chunk took that it was at.

        The first one of a unit that copies says nothing: it may have waited for the bus.
        """
        if self.unit.link is None or self.has_ended:
            ratio = self._slowness((now_ns - self.began_ns) / (self.predicted_s(chunk) * _SECOND_NS))
            self.factor = min(_SLOWEST, max(_FASTEST, ratio))
        self.has_ended = True


def make_lane(problem: Problem, unit: UnitModel, load: Load, chunks: Sequence[Chunk]) -> Lane:
    """Describe a unit by two predictions: of all of the problem, and of the smallest chunk worth a launch."""
    key = (id(unit), problem, load)
    known = _costs.get(key)
    if known is None or known[0] is not unit:
        if len(_costs) >= _MOST_COSTS:
            _costs.clear()
        known = _costs[key] = (unit, *_costs_of(problem, unit, load))
    return Lane(unit, problem.across, *known[1:], deque(chunks))


_costs: dict[tuple[int, Problem, Load], tuple[UnitModel, float, float, float]] = {}
"""Of units as they are, since a shape that is computed again and again has the same ones each time."""


def _costs_of(problem: Problem, unit: UnitModel, load: Load) -> tuple[float, float, float]:
    extent = problem.extent
    least = min(max(unit.min_chunk, unit.tile, extent // 16), extent)
    counts = np.array([least, extent], np.float64)
    sizes = np.tile(np.array(problem.sizes), (2, 1))
    sizes[:, problem.axis] = counts
    small_s, whole_s = map(
        float, unit.compute.predict_many(problem.unit_work * counts, sizes) * load.slowdown
    )
    each_s = (whole_s - small_s) / (extent - least) if extent > least else whole_s / extent
    each_s = max(each_s, 0.5 * whole_s / extent)
    fixed_s = max(0.0, small_s - each_s * least)
    first_s = 0.0
    if unit.link is not None:
        link = unit.link
        first_s = link.in_s(problem.fixed_nbytes)
        copies_s = problem.in_nbytes / link.in_bytes_per_s, problem.out_nbytes / link.out_bytes_per_s
        if link.overlaps:
            each_s = max(each_s, *copies_s)
        else:
            fixed_s += link.in_latency_s + link.out_latency_s
            each_s += sum(copies_s)
    return fixed_s, each_s, first_s


def area(chunk: Chunk, across: int) -> float:
    """Length of a chunk, as if it had the whole width."""
    return chunk.count * (chunk.across_count / across if chunk.across_count else 1.0)
