"""pathfinder: the cheapest ways from the first to the last row of a grid, by dynamic programming.

References
----------
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polymux.apps.application import Application, Arrays, require_equal
from polymux.apps.bands import bands
from polymux.apps.lane import Lane
from polymux.core.errors import InvalidRequest

ROWS = 513
ROUND = 32
"""Rows of one task; between two tasks the bands exchange so many costs at their edges."""


class Pathfinder(Application):
    """Least cost of arriving in each column of the last row, when a step leads to the next row and one column aside.

    Parameters
    ----------
    columns : int
        Columns of the grid.
    rows : int
        Rows of the grid.
    seed : int
        Of the cells' costs, whole numbers from 0 to 9.
    """

    name = "pathfinder"
    title = "cheapest ways through a grid, dynamic programming"
    kernels = ("pathfinder_rows",)

    def __init__(self, columns: int, rows: int = ROWS, seed: int = 0) -> None:
        if columns < 1 or rows < 1:
            raise InvalidRequest(f"the grid has {rows} rows of {columns} columns; give 1 or more of both")
        wall = np.random.default_rng(seed).integers(0, 10, (rows, columns), np.int32)
        self.inputs = {"wall": wall}
        self.nbytes = wall.nbytes + 3 * columns * 4

    @classmethod
    def of_size(cls, nbytes: int, seed: int = 0) -> Self:
        """Make one whose grid takes about `nbytes`."""
        return cls(max(ROUND, nbytes // (4 * (ROWS + 3))), seed=seed)

    def run(self, lanes: Sequence[Lane]) -> Arrays:
        """Go down the rows; after each round the lanes wait for each other, for the costs at the bands' edges."""
        wall = self.inputs["wall"]
        rows, columns = wall.shape
        cuts = bands(columns, min(len(lanes), columns // ROUND or 1))
        parts = [_Band(lane, wall, *cut) for lane, cut in zip(lanes, cuts, strict=False)]
        for row in range(1, rows, ROUND):
            edges = [part.edges for part in parts]
            for index, part in enumerate(parts):
                left = edges[index - 1][1] if index > 0 else None
                right = edges[index + 1][0] if index + 1 < len(parts) else None
                part.advance(left, right, row, min(ROUND, rows - row))
            if len(parts) > 1:
                for part in parts:
                    part.lane.wait()
        results = [part.lane.read(part.cost) for part in parts]
        return {"cost": results[0] if len(results) == 1 else np.concatenate(results)}

    def reference(self) -> Arrays:
        """Compute the same with NumPy."""
        return {"cost": self._reference}

    def check(self, result: Mapping[str, NDArray[Any]]) -> None:
        """Compare with the reference, every number."""
        require_equal("cost", result["cost"], self._reference)

    @cached_property
    def _reference(self) -> NDArray[Any]:
        wall = np.asarray(self.inputs["wall"])
        cost = wall[0]
        for row in wall[1:]:
            wide = np.pad(cost, 1, mode="edge")
            cost = row + np.minimum(np.minimum(wide[:-2], wide[2:]), cost)
        return np.asarray(cost)


class _Band:
    """Columns of the grid that one lane computes; its wall holds those of the margins as well."""

    def __init__(self, lane: Lane, wall: NDArray[Any], first: int, last: int) -> None:
        columns = wall.shape[1]
        self.lane = lane
        self.wall = lane.input(wall[:, max(0, first - ROUND) : last + ROUND])
        self.cost = lane.input(wall[0, first:last])
        self.edges = (
            lane.input(wall[0, first : first + ROUND]),
            lane.input(wall[0, max(0, last - ROUND) : last]),
        )
        self._nothing = lane.empty((0,), np.int32)
        self._targets = [lane.empty((last - first,), np.int32) for _ in range(2)]
        sizes = (ROUND if first > 0 else 0, ROUND if last < columns else 0)
        self._edges = [[lane.empty((size,), np.int32) for size in sizes] for _ in range(2)]

    def advance(self, left: Any, right: Any, row: int, rows: int) -> None:
        """Submit some rows; `left` and `right` are the neighbours' costs, None at an edge of the grid."""
        target, edges = self._targets[0], self._edges[0]
        margins = [self._nothing if costs is None else costs for costs in (left, right)]
        self.lane.submit(
            "pathfinder_rows", [self.wall, self.cost, *margins], [target, *edges], row=row, rows=rows
        )
        self.cost, self.edges = target, (edges[0], edges[1])
        self._targets.reverse()
        self._edges.reverse()
