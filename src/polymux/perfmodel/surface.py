"""The latency surface of a model on a kind of device: how long a batch takes over (share, batch)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from polymux.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class TableSurface:
    """Latency on a grid of shares and batches, linear between them.

    Beyond the grid: below the smallest share the time grows with its inverse, above the largest share it stays; a
    batch beyond the largest takes as many times longer as it is larger.

    Parameters
    ----------
    units : tuple of int
        Numbers of compute units, ascending.
    batches : tuple of int
        Batch sizes, ascending.
    table_ns : tuple of tuple of int, ns
        ``table_ns[i][j]`` for ``units[i]`` and ``batches[j]``.
    limit : int
        Largest batch that may be formed; 0: the largest of `batches`.

    Raises
    ------
    InvalidRequest
        If the table has another shape, is not ascending in its axes, or has a time below 1 ns.

    References
    ----------
    D-STACK: f_L(p, b), equations 8 to 12.
    """

    units: tuple[int, ...]
    batches: tuple[int, ...]
    table_ns: tuple[tuple[int, ...], ...]
    limit: int = 0
    _known: dict[tuple[int, int], int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, axis in (("units", self.units), ("batches", self.batches)):
            if not axis or axis[0] < 1 or any(b <= a for a, b in pairwise(axis)):
                raise InvalidRequest(f"latency surface: {name} are {axis}; give ascending numbers from 1 on")
        if len(self.table_ns) != len(self.units) or any(len(r) != len(self.batches) for r in self.table_ns):
            raise InvalidRequest(
                f"latency surface: the table has not {len(self.units)} rows of {len(self.batches)} times"
            )
        if min(min(row) for row in self.table_ns) < 1:
            raise InvalidRequest("latency surface: a time is below 1 ns; give positive times")

    @property
    def max_batch(self) -> int:
        """Largest batch that may be formed."""
        return self.limit or self.batches[-1]

    def latency_ns(self, units: int, batch: int) -> int:
        """Time of one batch on `units` compute units, in ns, at least 1.

        Raises
        ------
        InvalidRequest
            If `units` or `batch` is below 1.
        """
        key = (units, batch)
        known = self._known.get(key)
        if known is None:
            if units < 1 or batch < 1:
                raise InvalidRequest(
                    f"latency of a batch of {batch} on {units} units; give 1 or more of both"
                )
            known = self._known[key] = max(1, round(self._interpolate(units, batch)))
        return known

    def _interpolate(self, units: int, batch: int) -> float:
        low, high, part = _between(self.units, units)
        time_ns = (1 - part) * self._row(low, batch) + part * self._row(high, batch)
        return time_ns * max(1.0, self.units[0] / units)

    def _row(self, index: int, batch: int) -> float:
        row = self.table_ns[index]
        low, high, part = _between(self.batches, batch)
        return ((1 - part) * row[low] + part * row[high]) * max(1.0, batch / self.batches[-1])


def _between(axis: Sequence[int], value: int) -> tuple[int, int, float]:
    """Neighbours of a value on an axis, and where between them it lies; outside, the nearest end."""
    at = bisect_left(axis, value)
    if at == len(axis):
        return at - 1, at - 1, 0.0
    if at == 0 or axis[at] == value:
        return at, at, 0.0
    return at - 1, at, (value - axis[at - 1]) / (axis[at] - axis[at - 1])
