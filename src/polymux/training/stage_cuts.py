"""Choosing where to cut a chain of operations: arithmetic on times and sizes.

References
----------
The bound on the longest part is found by bisection over a dynamic programme, as in chains-on-chains partitioning:
A. Pinar, C. Aykanat, "Fast optimal load balancing algorithms for 1D partitioning", JPDC 2004.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

_SLACK = 1.05
"""The longest part may be so much longer than the shortest possible when that makes smaller cuts."""


def choose_cuts(
    times_ns: Sequence[int], cut_nbytes: Mapping[int, int], *, parts: int | None, longest_ns: int | None
) -> list[int]:
    """Choose cuts of a chain.

    Parameters
    ----------
    times_ns : sequence of int
        How long each operation takes.
    cut_nbytes : mapping of int to int
        Where the chain may be cut: position i is after operation i, and what crosses it has so many bytes.
    parts : int, optional
        At most so many parts, the longest of them as short as possible.
    longest_ns : int, optional
        As few parts as possible that take at most so long, or, where that cannot be, as near to it as possible.

    Returns
    -------
    list of int
        Chosen positions, ascending.
    """
    places = [-1, *sorted(place for place in cut_nbytes if place < len(times_ns) - 1), len(times_ns) - 1]
    until = [0, *accumulate(times_ns)]
    ends = [until[place + 1] for place in places]
    nbytes = [cut_nbytes.get(place, 0) for place in places]
    floor = max(after - before for before, after in pairwise(ends))
    if parts is None:
        bound = max(floor, ends[-1] if longest_ns is None else longest_ns)
    else:
        bound = _shortest_bound(ends, nbytes, parts, floor)
    return [places[index] for index in _within(ends, nbytes, bound)]


def _shortest_bound(ends: Sequence[int], nbytes: Sequence[int], parts: int, floor: int) -> int:
    low, high = max(floor, -(-ends[-1] // parts)), ends[-1]
    while low < high:
        middle = (low + high) // 2
        if len(_within(ends, nbytes, middle)) < parts:
            high = middle
        else:
            low = middle + 1
    relaxed = int(low * _SLACK)
    return relaxed if len(_within(ends, nbytes, relaxed)) < parts else low


def _within(ends: Sequence[int], nbytes: Sequence[int], bound: int) -> list[int]:
    """Return the cuts of the fewest parts that take no longer than `bound` each, those with the least bytes."""
    best: list[tuple[int, int, int]] = [(0, 0, -1)]  # parts, bytes, where the last part begins
    for index in range(1, len(ends)):
        options = []
        for start in range(index - 1, -1, -1):
            if ends[index] - ends[start] > bound:
                break
            parts, moved, _ = best[start]
            options.append((parts + 1, moved + nbytes[start], start))
        best.append(min(options))
    cuts = []
    index = best[-1][2]
    while index > 0:
        cuts.append(index)
        index = best[index][2]
    return cuts[::-1]
