"""gaussian: a system of linear equations by Gaussian elimination without pivoting and back substitution.

References
----------
G. H. Golub, C. F. Van Loan, "Matrix Computations", 4th ed., 2013, section 3.2.
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polymux.apps.application import Application, Arrays, require_close
from polymux.apps.lane import Lane
from polymux.core.errors import InvalidRequest

_ALIGNED = 16  # numbers in 64 bytes: rows begin where vectors do


class Gaussian(Application):
    """Solve ``a x = b`` with a diagonally dominant matrix in float32.

    Blocks of rows go to the lanes in turn. For one block after the other, its lane lets its rows eliminate each other;
    then all lanes subtract the multiples of these pivots from the rows that they have below.

    Parameters
    ----------
    n : int
        Number of equations.
    seed : int
        Of the matrix and the right-hand side.
    """

    name = "gaussian"
    title = "a system of linear equations, Gaussian elimination"
    kernels = ("gaussian_pivots", "gaussian_update")

    def __init__(self, n: int, seed: int = 0) -> None:
        if n < 1:
            raise InvalidRequest(f"n is {n}; give 1 or more equations")
        random = np.random.default_rng(seed)
        self.n = n
        self.block = 32 if n < 2048 else 64
        columns = (n + 1 + _ALIGNED - 1) // _ALIGNED * _ALIGNED
        system = np.zeros((n, columns), np.float32)
        system[:, : n + 1] = random.random((n, n + 1), np.float32)
        system[np.arange(n), np.arange(n)] += n / 2
        self.inputs = {"system": system}
        self.nbytes = 3 * system.nbytes

    @classmethod
    def of_size(cls, nbytes: int, seed: int = 0) -> Self:
        """Make one whose matrix (as it is given, as it is eliminated, and triangular) takes about `nbytes`."""
        return cls(max(2, isqrt(nbytes // 12)), seed=seed)

    def run(self, lanes: Sequence[Lane]) -> Arrays:
        """Eliminate; where there are several lanes, they wait for each block's pivots."""
        system, block, n = self.inputs["system"], self.block, self.n
        starts = range(0, n, block)
        parts = [_Part(lane, system, starts[i :: len(lanes)], block) for i, lane in enumerate(lanes)]
        parts = [part for part in parts if len(part.starts)]
        triangle = []
        for index, start in enumerate(starts):
            owner = parts[index % len(parts)]
            pivots = owner.make_pivots(start, min(block, n - start))
            triangle.append((owner.lane, pivots))
            if len(parts) > 1:
                owner.lane.wait()
            for part in parts:
                part.update(pivots, start)
        return {"x": self._substitute([lane.read(pivots) for lane, pivots in triangle])}

    def _substitute(self, triangle: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Solve the triangular system, from the last block of rows to the first."""
        n = self.n
        x = np.zeros(n, np.float32)
        for index in reversed(range(len(triangle))):
            rows, start = triangle[index], index * self.block
            end = start + len(rows)
            known = rows[:, n] - rows[:, end:n] @ x[end:]
            x[start:end] = np.linalg.solve(np.triu(rows[:, start:end]), known)
        return x

    def reference(self) -> Arrays:
        """Solve with LAPACK in double precision."""
        return {"x": self._reference}

    def check(self, result: Mapping[str, NDArray[Any]]) -> None:
        """Compare with the reference, to 1e-4 of the largest number."""
        require_close("x", result["x"], self._reference, 1e-4)

    @cached_property
    def _reference(self) -> NDArray[Any]:
        system = self.inputs["system"][:, : self.n + 1].astype(np.float64)
        return np.linalg.solve(system[:, : self.n], system[:, self.n])


class _Part:
    """The blocks of rows that one lane has, one below the other in one buffer."""

    def __init__(self, lane: Lane, system: NDArray[Any], starts: range, block: int) -> None:
        n, columns = system.shape
        self.lane, self.starts, self._columns, self._block = lane, starts, columns, block
        whole = len(starts) * block >= n
        rows = system if whole else np.concatenate([system[s : s + block] for s in starts] or [system[:0]])
        self._rows = lane.input(rows)
        self._target = lane.empty(rows.shape, np.float32)

    def make_pivots(self, start: int, count: int) -> Any:
        """Submit the elimination among the `count` rows of the block that begins at row `start` of the system."""
        pivots = self.lane.empty((count, self._columns), np.float32)
        first = self.starts.index(start) * self._block
        self.lane.submit("gaussian_pivots", [self._rows], [pivots], first=first, column=start)
        return pivots

    def update(self, pivots: Any, start: int) -> None:
        """Submit the subtraction of pivots from all rows below them; the first time into a buffer of the lane's own."""
        first = sum(1 for own in self.starts if own <= start) * self._block
        if first >= self._rows.shape[0]:
            return
        self.lane.submit(
            "gaussian_update",
            [self._rows, pivots],
            [self._target],
            first=first,
            column=start,
        )
        self._rows = self._target
