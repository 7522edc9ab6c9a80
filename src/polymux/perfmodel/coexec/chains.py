"""Splits whose units share a bus, where a copy waits for the one before it. In closed form.

Given a choice of units and the order of their copies in and back, all units are to end so that the copies back follow
one another without a gap up to the makespan T: the copies in up to a unit's own, its computation, and the copies back
from its own on add up to T. With times that are linear in the lengths of the parts these are as many linear equations
as there are unknowns. They are solved for all choices of units and several orders at once.

References
----------
Beaumont, Casanova, Legrand, Robert, Yang: Scheduling divisible loads on star and tree networks. IEEE TPDS 16(3), 2005.
Beaumont, Marchal, Rehn, Robert: FIFO scheduling of divisible loads with return messages under the one-port model. 2005.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product

import numpy as np

from polymux.perfmodel.coexec.curves import Curve, Floats, Masks

Order = tuple[int, ...]
ALL_ORDERS = 3
"""Units on buses of which all orders are tried; of more, those of some rules, and then one after the other is moved."""


def shared(curves: Sequence[Curve]) -> bool:
    """Whether copies of two units, which are not alternatives, share a bus."""
    buses = [
        {curve.unit.device for curve in curves if curve.bus == bus}
        for bus in {c.bus for c in curves} - {None}
    ]
    return any(len(devices) > 1 for devices in buses)


def first_orders(curves: Sequence[Curve]) -> list[tuple[Order, Order]]:
    """Orders of copies in and back to begin with: all where there are few, otherwise by rules."""
    copying = [number for number, curve in enumerate(curves) if curve.bus is not None]
    rest = tuple(number for number, curve in enumerate(curves) if curve.bus is None)
    if len(copying) <= ALL_ORDERS:
        every = [(*order, *rest) for order in permutations(copying)]
        return list(product(every, every))
    rate = [curve.compute_s[-1] / curve.counts[-1] for curve in curves]
    rules = (
        sorted(copying, key=lambda i: curves[i].in_unit_s),  # the fastest link first
        sorted(copying, key=lambda i: rate[i]),  # the fastest unit first
        sorted(copying, key=lambda i: curves[i].in_fixed_s),  # the shortest delay of all others first
    )
    orders = [(*order, *rest) for order in dict.fromkeys(map(tuple, rules))]
    return [(order, back) for order in orders for back in (order, (*order[len(copying) - 1 :: -1], *rest))]


def moved(order: Order, copying: int) -> list[Order]:
    """Orders in which one of the first `copying` units has another place among them."""
    orders = set()
    for old in range(copying):
        rest = order[:old] + order[old + 1 :]
        orders |= {(*rest[:new], order[old], *rest[new:]) for new in range(copying)}
    return sorted(orders - {order})


class Equations:
    """The equations of a problem's units, for any choice of them and any order of their copies.

    Parameters
    ----------
    curves : sequence of Curve
    extent : int
        Length of the axis that is split.
    """

    def __init__(self, curves: Sequence[Curve], extent: int) -> None:
        self._curves = curves
        self._extent = extent
        self._least = np.array([curve.counts[0] for curve in curves])
        self._ready = np.array([curve.ready_s if curve.bus is None else 0.0 for curve in curves])
        self._in_fixed = np.array([curve.in_fixed_s for curve in curves])
        self._in_unit = np.array([curve.in_unit_s for curve in curves])
        self._bus_unit = np.array([curve.bus_unit_s for curve in curves])
        self._out_fixed = np.array([curve.out_fixed_s for curve in curves])
        self._out_unit = np.array([curve.out_unit_s for curve in curves])
        buses = [curve.bus for curve in curves]
        self._same_bus = np.array([[one is not None and one == other for other in buses] for one in buses])

    def lines(self, around: Floats) -> tuple[Floats, Floats]:
        """Times of computation as lines through lengths: their starts and slopes, in the shape of `around`."""
        lines = [curve.tangents(around[:, unit]) for unit, curve in enumerate(self._curves)]
        return np.stack([start for start, _ in lines], axis=1), np.stack(
            [slope for _, slope in lines], axis=1
        )

    def solve(
        self, masks: Masks, lines: tuple[Floats, Floats], pairs: Sequence[tuple[Order, Order]]
    ) -> tuple[Floats, Floats]:
        """Solve the equations of some choices of units, each with an order of its copies.

        Parameters
        ----------
        masks : array of bool, of shape (choices, units)
        lines : (array of shape (choices, units), array of shape (choices, units))
            Times of computation, as from `lines`.
        pairs : sequence of (tuple of int, tuple of int)
            For each choice, or one for all, all units in the order of their copies in and back.

        Returns
        -------
        makespans : array of shape (choices,), s
            Infinite where a part would be shorter than the least, or longer than all.
        counts : array of shape (choices, units)
        """
        inward = self._earlier([order for order, _ in pairs])
        outward = self._earlier([back for _, back in pairs]).transpose(0, 2, 1)
        return self._solve(masks, lines, inward, outward)

    def _solve(
        self, masks: Masks, lines: tuple[Floats, Floats], inward: Floats, outward: Floats
    ) -> tuple[Floats, Floats]:
        count, number = masks.shape
        start, slope = lines
        used = masks.astype(np.float64)
        matrix = np.zeros((count, number + 1, number + 1))
        pairs = inward * self._bus_unit + outward * self._out_unit
        matrix[:, :number, :number] = pairs * used[:, None, :] * used[:, :, None]
        diagonal = np.arange(number)
        own = slope + self._in_unit - self._bus_unit
        matrix[:, diagonal, diagonal] += np.where(masks, own, 1.0)
        matrix[:, :number, number] = -used
        matrix[:, number, :number] = 1.0
        right = np.empty((count, number + 1, 1))
        before = ((inward * self._in_fixed + outward * self._out_fixed) @ used[:, :, None])[:, :, 0]
        right[:, :number, 0] = -used * (start + self._ready + before)
        right[:, number, 0] = self._extent
        try:
            found = np.linalg.solve(matrix, right)[:, :, 0]
        except np.linalg.LinAlgError:  # a unit that takes no time for more
            return np.full(count, np.inf), np.zeros(masks.shape)
        counts, makespans = found[:, :number], found[:, number]
        fits = (counts >= self._least * (1 - 1e-9)) & (counts <= self._extent * (1 + 1e-9))
        good = np.all(fits | ~masks, axis=1)
        counts = np.where(masks, np.minimum(np.maximum(counts, 0.0), self._extent), 0.0)
        return np.where(good, makespans, np.inf), counts

    def _earlier(self, orders: Sequence[Order]) -> Floats:
        """1 where the copy of the unit of the column is on the bus of that of the row and not after it."""
        places = np.empty((len(orders), len(self._curves)), np.int64)
        np.put_along_axis(places, np.array(orders), np.arange(len(self._curves))[None, :], axis=1)
        return np.asarray(self._same_bus & (places[:, None, :] <= places[:, :, None]), np.float64)
