"""Dividing rows or columns among lanes."""

from __future__ import annotations

from itertools import pairwise


def bands(extent: int, count: int) -> list[tuple[int, int]]:
    """Cut ``range(extent)`` into at most `count` pieces of nearly equal size, none of them empty.

    Returns
    -------
    list of tuple of int
        Begin and end of each piece.
    """
    used = max(1, min(count, extent))
    return list(pairwise(extent * part // used for part in range(used + 1)))
