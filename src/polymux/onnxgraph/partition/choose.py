"""Picks the cuts of a chain of nodes: arithmetic on times and sizes, nothing else.

Two things are weighed: the longest part, for which others wait at most, and what the cuts cost together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.partition.flow import CutPoint

CUT_NS = 100_000.0
"""What one cut costs at least: a task and a call of a session more, threads that start anew."""
CARRY_NS_PER_BYTE = 0.1
"""What a cut costs for each byte that crosses it: written to memory and read from there, out of cold caches."""
OVERHEAD = 0.02
"""Part of the run time that the cuts may cost where nothing else is asked for."""
MOST_PARTS = 64
_SLACK = 1.05
"""How much longer than it has to be the longest part may become for cheaper cuts."""
_WORTH = 1.1
"""Where nothing else is asked for, how much longer the longest part may become when that saves cuts."""
_SHORTER = 0.95
"""Where nothing else is asked for, cuts have to bring the longest part below this times the whole."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How finely a model is to be cut. Neither: as finely as it costs no more than `OVERHEAD`.

    Parameters
    ----------
    parts : int, optional
        So many parts.
    longest_ns : float, optional
        As few cuts as it takes for no part to be longer than this.

    Raises
    ------
    InvalidRequest
        For both at once, or a value out of range.
    """

    parts: int | None = None
    longest_ns: float | None = None

    def __post_init__(self) -> None:
        if self.parts is not None and self.longest_ns is not None:
            raise InvalidRequest("give a number of parts or a longest time, not both")
        if self.parts is not None and not 1 <= self.parts <= MOST_PARTS:
            raise InvalidRequest(f"{self.parts} parts: give 1 to {MOST_PARTS}")
        if self.longest_ns is not None and not 0 < self.longest_ns < inf:
            raise InvalidRequest(f"longest part {self.longest_ns / 1e6:g} ms: give more than 0")


def choose(times_ns: Sequence[float], points: Sequence[CutPoint], wish: Wish) -> list[CutPoint]:
    """Pick cuts.

    Parameters
    ----------
    times_ns : sequence of float
        Of the nodes, in their order.
    points : sequence of CutPoint
        Where cuts are possible, in order.
    wish : Wish

    Returns
    -------
    list of CutPoint
        In order. Where the wish cannot be met, the ones that come closest: the longest part is then what lies between
        two neighbouring points.
    """
    line = _Line(times_ns, points)
    if wish.parts is not None:
        parts = min(wish.parts, len(points) + 1)
        return line.cheapest(parts, _SLACK * line.least_longest(parts))
    if wish.longest_ns is not None:
        return line.cheapest(None, max(wish.longest_ns, line.finest_ns))
    return _as_fine_as_cheap(line)


def _as_fine_as_cheap(line: _Line) -> list[CutPoint]:
    """Find the shortest bound on all parts for which the cuts cost no more than they may; not for a little of it."""

    def affordable(longest_ns: float) -> list[CutPoint] | None:
        cuts = line.cheapest(None, longest_ns)
        return cuts if len(cuts) < MOST_PARTS and cost_ns(cuts) <= OVERHEAD * line.total_ns else None

    low, high = line.finest_ns, _SHORTER * line.total_ns
    if low > high:
        return []
    if affordable(low) is not None:
        high = low
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if affordable(middle) is None else (low, middle)
    return affordable(min(_WORTH * high, _SHORTER * line.total_ns)) or []


def cost_ns(cuts: Sequence[CutPoint]) -> float:
    """Estimate what cuts cost together."""
    return sum(CUT_NS + CARRY_NS_PER_BYTE * cut.nbytes for cut in cuts)


class _Line:
    """Nodes in a row with the places between them; place 0 is the beginning, the last one the end."""

    def __init__(self, times_ns: Sequence[float], points: Sequence[CutPoint]) -> None:
        sums = [0.0, *accumulate(times_ns)]
        self._points = points
        self._at = [0.0, *(sums[point.before] for point in points), sums[-1]]
        self._costs = [0.0, *(cost_ns([point]) for point in points), 0.0]
        self.total_ns = sums[-1]
        self.finest_ns = max(b - a for a, b in zip(self._at, self._at[1:], strict=False))

    def least_longest(self, parts: int) -> float:
        """Return the shortest time that the longest of so many parts can have."""
        low, high = self.finest_ns, self.total_ns
        if self._fewest(low) <= parts:
            return low
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self._fewest(middle) <= parts else (middle, high)
        return high

    def cheapest(self, parts: int | None, longest_ns: float) -> list[CutPoint]:
        """Pick cuts that cost least, so that no part is longer; exactly so many parts where a number is given."""
        longest_ns = max(longest_ns, self.finest_ns) * (1 + 1e-9)
        count = len(self._at)
        first = [bisect_left(self._at, at - longest_ns) for at in self._at]
        costs, came = [0.0, *[inf] * (count - 1)], [[0] * count]
        if parts is None:
            for end in range(1, count):
                start = min(range(first[end], end), key=costs.__getitem__, default=0)
                costs[end], came[0][end] = costs[start] + self._costs[end], start
            return self._backwards(came * count)
        came = []
        for _ in range(parts):
            costs, starts = self._one_more(costs, first)
            came.append(starts)
        return self._backwards(came)

    def _one_more(self, costs: Sequence[float], first: Sequence[int]) -> tuple[list[float], list[int]]:
        """From what it costs to come to each place, what it costs with one part more."""
        result, starts = [inf] * len(costs), [0] * len(costs)
        for end in range(1, len(costs)):
            start = min(range(first[end], end), key=costs.__getitem__, default=0)
            result[end], starts[end] = costs[start] + self._costs[end], start
        return result, starts

    def _backwards(self, came: Sequence[Sequence[int]]) -> list[CutPoint]:
        place, cuts = len(self._at) - 1, []
        for starts in reversed(came):
            place = starts[place]
            if place == 0:
                break
            cuts.append(self._points[place - 1])
        return cuts[::-1]

    def _fewest(self, longest_ns: float) -> int:
        """Return the number of parts that it takes for none to be longer."""
        limit, place, parts = longest_ns * (1 + 1e-9), 0, 0
        while place < len(self._at) - 1:
            place = max(place + 1, bisect_right(self._at, self._at[place] + limit) - 1)
            parts += 1
        return parts
