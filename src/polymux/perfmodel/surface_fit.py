"""Fits a latency surface to measured points, and tells how far it may be off.

The surface is a law times a correction. The law is ``c0 + c1*b + c2/p + c3*b/p`` with coefficients that are not
negative: a serial part and a part that is divided by the share p, each with a start and a slope over the batch b. It
cannot rise with the share or fall with the batch, and it carries the surface beyond what was measured. The correction
makes it meet the points: the logarithm of measured over predicted, linear between neighbours in the logarithms of share
and batch. On the grid, measured points that break the order are then moved to the middle of their bounds, and predicted
ones between the measured ones.

The error is that of leaving one out: each point is predicted by a fit to all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.measurement import Measurement
from polymux.perfmodel.surface import TableSurface

Floats = NDArray[np.float64]
_NOTHING = 1e-9
"""A time below every measured one; above 0, so that it can be multiplied by infinity."""


@dataclass(frozen=True, slots=True)
class FittedSurface:
    """A surface with the error of its prediction where it was not measured.

    Parameters
    ----------
    surface : TableSurface
    law_ns : tuple of 4 floats, ns
        c0 to c3, with p in units.
    left_out : tuple of (int, int, float)
        For each measured share and batch what a fit without it predicts, over what was measured, minus 1. Empty with
        fewer than three points. The points at the grid's ends are extrapolated.
    """

    surface: TableSurface
    law_ns: tuple[float, float, float, float]
    left_out: tuple[tuple[int, int, float], ...]

    @property
    def median_error(self) -> float | None:
        """Median of the absolute errors of points left out, relative; None with fewer than three points."""
        return float(np.median(self._errors())) if self.left_out else None

    @property
    def largest_error(self) -> float | None:
        """Largest absolute error of a point left out, relative; None with fewer than three points."""
        return float(np.max(self._errors())) if self.left_out else None

    @property
    def inner_error(self) -> float | None:
        """Largest absolute error of a point left out that does not lie at an end of the grid; None without any."""
        units = [row[0] for row in self.left_out]
        batches = [row[1] for row in self.left_out]
        inner = [
            abs(error)
            for share, batch, error in self.left_out
            if min(units) < share < max(units) and min(batches) < batch < max(batches)
        ]
        return max(inner, default=None)

    def _errors(self) -> Floats:
        errors: Floats = np.abs(np.array([row[2] for row in self.left_out]))
        return errors


def fit_surface(
    points: Sequence[Measurement],
    units: Sequence[int] = (),
    batches: Sequence[int] = (),
    max_batch: int = 0,
) -> FittedSurface:
    """Fit a surface to measured points, on a grid or scattered.

    Parameters
    ----------
    points : sequence of Measurement
        One or more; several of one share and batch count as their geometric mean.
    units, batches : sequence of int
        Axes of the surface, ascending; empty: those of the points.
    max_batch : int
        Largest batch that may be formed; 0: the largest of `batches`.

    Returns
    -------
    FittedSurface
        Its surface never rises with the share and never falls with the batch.

    Raises
    ------
    InvalidRequest
        If there are no points, or an axis does not ascend from 1 on.

    Notes
    -----
    Least squares of relative errors; refitted once for each point (about 0.1 ms each).

    References
    ----------
    D-STACK: f_L(p, b) is fitted on batches {1, 2, 4, 8, 10, 12, 16} and shares {10, 20, ..., 100} %.
    """
    if not points:
        raise InvalidRequest("latency surface: there are no measured points; measure at least one")
    known = _merge(points)
    units = tuple(units) or tuple(sorted({int(share) for share in known[:, 0]}))
    batches = tuple(batches) or tuple(sorted({int(batch) for batch in known[:, 1]}))
    law = _fit_law(known)
    table = np.array([[_predict(known, law, share, batch) for batch in batches] for share in units])
    points_at = {(int(share), int(batch)) for share, batch, _ in known}
    measured = np.array([[(share, batch) in points_at for batch in batches] for share in units])
    rows = tuple(tuple(max(1, round(time)) for time in row) for row in _put_in_order(table, measured))
    return FittedSurface(TableSurface(units, batches, rows, max_batch), law, _leave_one_out(known))


def _merge(points: Sequence[Measurement]) -> Floats:
    """Rows of share, batch and time in ns, one for each share and batch."""
    logs: dict[tuple[int, int], list[float]] = {}
    for point in points:
        logs.setdefault((point.units, point.batch), []).append(float(np.log(point.latency_ns)))
    rows: Floats = np.array([(*key, np.exp(np.mean(values))) for key, values in sorted(logs.items())])
    return rows


def _terms(units: Floats, batches: Floats) -> Floats:
    terms: Floats = np.stack([np.ones_like(units), batches, 1 / units, batches / units], axis=-1)
    return terms


def _fit_law(known: Floats) -> tuple[float, float, float, float]:
    """Non-negative least squares of relative errors.

    Of all subsets of the four terms the best whose free solution has no negative coefficient: that is the constrained
    optimum, and with four terms there are fifteen subsets to try. Equal ones: the fewest terms.
    """
    rows = _terms(known[:, 0], known[:, 1]) / known[:, 2:]
    best, least = (0.0, 0.0, 0.0, float(np.mean(known[:, 2] * known[:, 0] / known[:, 1]))), np.inf
    for count in range(1, min(4, len(rows)) + 1):
        for chosen in combinations(range(4), count):
            part = rows[:, chosen]
            found, *_ = np.linalg.lstsq(part, np.ones(len(rows)), rcond=None)
            rest = float(np.sum((part @ found - 1) ** 2))
            if np.all(found >= 0) and rest < least * (1 - 1e-9) - 1e-12:
                whole = np.zeros(4)
                whole[list(chosen)] = found
                best, least = (float(whole[0]), float(whole[1]), float(whole[2]), float(whole[3])), rest
    return best


def _law(law: Sequence[float], units: float, batch: float) -> float:
    return law[0] + law[1] * batch + (law[2] + law[3] * batch) / units


def _predict(known: Floats, law: Sequence[float], units: int, batch: int) -> float:
    """Time in ns: the law times the correction at that share and batch."""
    measured = np.unique(known[:, 1])
    below, above = measured[measured <= batch][-1:], measured[measured >= batch][:1]
    around = np.unique(np.concatenate([below, above]))
    corrections = []
    for column in around:
        rows = known[known[:, 1] == column]
        laws = np.array([_law(law, row[0], row[1]) for row in rows])
        corrections.append(np.interp(np.log(units), np.log(rows[:, 0]), np.log(rows[:, 2] / laws)))
    correction = np.interp(np.log(batch), np.log(around), corrections)
    return float(_law(law, units, batch) * np.exp(correction))


def _put_in_order(table: Floats, measured: NDArray[np.bool_]) -> Floats:
    """Make times fall with the share and rise with the batch; measured ones move only where they contradict others."""
    middle = _middle(np.where(measured, table, _NOTHING), np.where(measured, table, np.inf))
    least = _largest_within(np.where(measured, middle, _NOTHING))
    most = _smallest_beyond(np.where(measured, middle, np.inf))
    whole = np.where(measured, middle, np.clip(table, least, most))
    return _middle(whole, whole)


def _middle(lower: Floats, upper: Floats) -> Floats:
    middle: Floats = np.sqrt(_largest_within(lower)) * np.sqrt(_smallest_beyond(upper))
    return middle


def _largest_within(table: Floats) -> Floats:
    """For each cell the largest time of those with as many units or more and a batch as large or smaller."""
    largest: Floats = np.maximum.accumulate(np.maximum.accumulate(table[::-1], axis=0)[::-1], axis=1)
    return largest


def _smallest_beyond(table: Floats) -> Floats:
    """For each cell the smallest time of those with as many units or fewer and a batch as large or larger."""
    smallest: Floats = np.minimum.accumulate(np.minimum.accumulate(table, axis=0)[:, ::-1], axis=1)[:, ::-1]
    return smallest


def _leave_one_out(known: Floats) -> tuple[tuple[int, int, float], ...]:
    if len(known) < 3:
        return ()
    left_out = []
    for at, (share, batch, time) in enumerate(known):
        others = np.delete(known, at, axis=0)
        predicted = _predict(others, _fit_law(others), int(share), int(batch))
        left_out.append((int(share), int(batch), float(predicted / time - 1)))
    return tuple(left_out)
