"""The way back through a matrix of alignment scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Panel:
    """A part of the matrix: its own rows and columns, and before them one of the neighbours' (or of the edge).

    Parameters
    ----------
    row, column : int
        Of the whole matrix at the part's element (0, 0).
    scores : (rows + 1, columns + 1) ndarray of int32
    """

    row: int
    column: int
    scores: NDArray[Any]

    def holds(self, i: int, j: int) -> bool:
        """Whether the part has cell (i, j) and all three cells before it."""
        rows, columns = self.scores.shape
        return bool(0 < i - self.row < rows and 0 < j - self.column < columns)


def alignment_of(
    panels: Sequence[Panel],
    first: NDArray[np.uint8],
    second: NDArray[np.uint8],
    substitution: NDArray[Any],
    gap: int,
) -> NDArray[np.int32]:
    """Go from the last cell to the first, along cells that the scores come from; a pair of letters before a gap.

    Returns
    -------
    (steps + 1, 2) ndarray of int32
        Row and column of each cell, from (0, 0) on.
    """
    i, j = len(first), len(second)
    a, b, table = first.tolist(), second.tolist(), substitution.tolist()
    way = [(i, j)]
    while i > 0 and j > 0:
        panel = next(panel for panel in panels if panel.holds(i, j))
        row, column, score_at = panel.row, panel.column, panel.scores.item
        score = score_at(i - row, j - column)
        while i > row and j > column:
            pair = score_at(i - row - 1, j - column - 1)
            if score == pair + table[a[i - 1]][b[j - 1]]:
                i, j, score = i - 1, j - 1, pair
            else:
                above = score_at(i - row - 1, j - column)
                if score == above - gap:
                    i, score = i - 1, above
                else:
                    j, score = j - 1, score + gap
            way.append((i, j))
    way += [(k, 0) for k in range(i - 1, -1, -1)] if j == 0 else [(0, k) for k in range(j - 1, -1, -1)]
    return np.array(way[::-1], np.int32)
