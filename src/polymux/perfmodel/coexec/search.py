"""The best split on shared buses: choices of units and orders of copies, solved many at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polymux.perfmodel.coexec.chains import ALL_ORDERS, Equations, Order, first_orders, moved
from polymux.perfmodel.coexec.curves import Curve, Floats, Masks
from polymux.perfmodel.coexec.problem import Objective
from polymux.perfmodel.coexec.split import Candidate, energies_j, evaluated

_KEPT = 4
"""Best ones of a table of choices and orders that are looked at more closely."""
_IMPROVED = 2
"""Of these, whose orders are improved."""
_NO_GAIN = 1e-5


class Search:
    """Looks for the split with the least value of an objective.

    Parameters
    ----------
    curves : sequence of Curve
    objective : Objective
    masks : array of bool, of shape (choices, units)
        Choices of units.
    extent : int
    """

    def __init__(self, curves: Sequence[Curve], objective: Objective, masks: Masks, extent: int) -> None:
        self._curves = curves
        self._objective = objective
        self._masks = masks
        self._equations = Equations(curves, extent)
        self._copying = sum(curve.bus is not None for curve in curves)

    def best(self, around: Floats) -> Candidate | None:
        """Solve all choices in the first orders, the best ones more closely, and improve the order of these.

        Parameters
        ----------
        around : array of shape (choices, units)
            Lengths around which times are taken as linear at first.

        Returns
        -------
        Candidate or None
            None: no choice has a solution.
        """
        pairs = first_orders(self._curves)
        choices = len(self._masks)
        start, slope = self._equations.lines(around)
        masks = np.tile(self._masks, (len(pairs), 1))
        lines = np.tile(start, (len(pairs), 1)), np.tile(slope, (len(pairs), 1))
        each = [pair for pair in pairs for _ in range(choices)]
        found = [self._closer(*its) for its in self._solved(masks, lines, each, _KEPT)]
        found.sort(key=lambda its: its.value)
        if self._copying > ALL_ORDERS:
            found = [self._improved(its) for its in found[:_IMPROVED]]
        return min(found, key=lambda its: its.value, default=None)

    def _solved(
        self,
        masks: Masks,
        lines: tuple[Floats, Floats],
        pairs: Sequence[tuple[Order, Order]],
        most: int,
    ) -> list[tuple[Masks, Candidate]]:
        """The best solutions of a table, as they are by the curves."""
        makespans, counts = self._equations.solve(masks, lines, pairs)
        values = _values(self._curves, counts, makespans, self._objective)
        rows = np.argsort(values)[:most] if most > 1 else [np.argmin(values)]
        return [
            (
                masks[row],
                evaluated(self._curves, self._objective, counts[row], *pairs[row if len(pairs) > 1 else 0]),
            )
            for row in map(int, rows)
            if values[row] < np.inf
        ]

    def _closer(self, mask: Masks, best: Candidate) -> Candidate:
        """Take times as linear around where the lengths came out, until that changes nothing."""
        for _ in range(2):
            lines = self._equations.lines(best.counts[None, :])
            again = self._solved(mask[None, :], lines, [(best.order, best.back)], 1)
            if not again or again[0][1].value >= best.value * (1 - _NO_GAIN):
                break
            best = again[0][1]
        return best

    def _improved(self, best: Candidate) -> Candidate:
        """Move units in the orders of copies, and choose units anew for these, as long as that helps."""
        for _ in range(len(self._curves)):
            around = best.counts[None, :]
            used, lines = best.counts > 0, self._equations.lines(around)
            orders, backs = moved(best.order, self._copying), moved(best.back, self._copying)
            pairs = [
                *((order, best.back) for order in orders),
                *((best.order, back) for back in backs),
                *((order, order) for order in orders),
            ]
            masks = np.repeat(used[None, :], len(pairs), axis=0)
            trials = self._solved(masks, lines, pairs, 1)
            every = self._equations.lines(np.where(self._masks, around, 0.0))
            trials += self._solved(self._masks, every, [(best.order, best.back)], 1)
            better = min((its for _, its in trials), key=lambda its: its.value, default=best)
            if better.value >= best.value * (1 - _NO_GAIN):
                break
            best = better
        return best


def _values(curves: Sequence[Curve], counts: Floats, makespans: Floats, objective: Objective) -> Floats:
    found = makespans < np.inf
    finite = np.where(found, makespans, 0.0)
    values = objective.time * finite
    if objective.energy:
        values = values + objective.energy * energies_j(curves, counts, finite)
    return np.where(found, values, np.inf)
