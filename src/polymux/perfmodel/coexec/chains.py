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
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from polymux.perfmodel.coexec.curves import Curve, Floats, Masks

Order = tuple[int, ...]
_ALL_ORDERS = 3
"""Units on a bus of which all orders are tried; of more, those of some rules, and then neighbours change places."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A split whose copies follow one another.

    Parameters
    ----------
    makespan_s : float, s
        With times linear around where the balance had the parts.
    counts : array of shape (units,)
        Length of each part, not rounded.
    order, back : tuple of int
        Units by number, in the order of their copies in and back.
    """

    makespan_s: float
    counts: Floats
    order: Order
    back: Order


def shared(curves: Sequence[Curve]) -> bool:
    """Whether copies of two units, which are not alternatives, share a bus."""
    buses = [
        {curve.unit.device for curve in curves if curve.bus == bus}
        for bus in {c.bus for c in curves} - {None}
    ]
    return any(len(devices) > 1 for devices in buses)


def first_orders(curves: Sequence[Curve]) -> list[Order]:
    """Orders of copies in to begin with: all where there are few, otherwise by rules."""
    copying = [number for number, curve in enumerate(curves) if curve.bus is not None]
    rest = tuple(number for number, curve in enumerate(curves) if curve.bus is None)
    if len(copying) <= _ALL_ORDERS:
        return [(*order, *rest) for order in permutations(copying)]
    rate = [curve.compute_s[-1] / curve.counts[-1] for curve in curves]
    rules = (
        sorted(copying, key=lambda i: curves[i].in_unit_s),  # the fastest link first
        sorted(copying, key=lambda i: rate[i]),  # the fastest unit first
        sorted(copying, key=lambda i: curves[i].in_fixed_s),  # the shortest delay of all others first
    )
    return [(*order, *rest) for order in dict.fromkeys(map(tuple, rules))]


def swapped(curves: Sequence[Curve], order: Order) -> list[Order]:
    """Orders in which two neighbours that copy have changed places."""
    orders = []
    for place in range(len(order) - 1):
        if curves[order[place]].bus is not None and curves[order[place + 1]].bus is not None:
            other = list(order)
            other[place], other[place + 1] = other[place + 1], other[place]
            orders.append(tuple(other))
    return orders


def solve_chains(
    curves: Sequence[Curve], masks: Masks, around: Floats, extent: int, order: Order, *, reverse: bool
) -> tuple[Floats, Floats]:
    """Solve the equations of one order for each choice of units.

    Parameters
    ----------
    curves : sequence of Curve
    masks : array of bool, of shape (choices, units)
    around : array of shape (choices, units)
        Lengths around which the times of computation are taken as linear.
    extent : int
    order : tuple of int
        Of the copies in.
    reverse : bool
        Whether the copies back are in the reverse order, instead of the same.

    Returns
    -------
    makespans : array of shape (choices,), s
        Infinite where a part would be shorter than the least, or longer than all.
    counts : array of shape (choices, units)
    """
    count, number = masks.shape
    start, slope = np.empty(masks.shape), np.empty(masks.shape)
    for unit, curve in enumerate(curves):
        start[:, unit], slope[:, unit] = curve.tangents(around[:, unit])
    earlier = _earlier(curves, order)
    inward, outward = earlier, earlier if reverse else earlier.T
    in_fixed, in_unit, out_fixed, out_unit = (
        np.array([getattr(curve, name) for curve in curves])
        for name in ("in_fixed_s", "in_unit_s", "out_fixed_s", "out_unit_s")
    )
    ready = np.array([curve.ready_s if curve.bus is None else 0.0 for curve in curves])
    used = masks.astype(np.float64)
    matrix = np.zeros((count, number + 1, number + 1))
    pairs = inward * in_unit + outward * out_unit
    matrix[:, :number, :number] = pairs * used[:, None, :] * used[:, :, None]
    diagonal = np.arange(number)
    matrix[:, diagonal, diagonal] += np.where(masks, slope, 1.0)
    matrix[:, :number, number] = -used
    matrix[:, number, :number] = 1.0
    right = np.zeros((count, number + 1))
    right[:, :number] = -used * (start + ready + used @ (inward * in_fixed + outward * out_fixed).T)
    right[:, number] = extent
    try:
        found = np.linalg.solve(matrix, right[:, :, None])[:, :, 0]
    except np.linalg.LinAlgError:  # a unit that takes no time for more
        return np.full(count, np.inf), np.zeros(masks.shape)
    counts, makespans = found[:, :number], found[:, number]
    least = np.array([curve.counts[0] for curve in curves])
    good = np.all(
        np.where(masks, (counts >= least * (1 - 1e-9)) & (counts <= extent * (1 + 1e-9)), True), axis=1
    )
    return np.where(good, makespans, np.inf), np.where(masks, np.clip(counts, 0, extent), 0.0)


def _earlier(curves: Sequence[Curve], order: Order) -> Floats:
    """1 where the copy of the unit of the column is on the bus of that of the row and not after it."""
    place = np.empty(len(order), np.int64)
    place[list(order)] = np.arange(len(order))
    buses = [curve.bus for curve in curves]
    same = np.array([[one is not None and one == other for other in buses] for one in buses])
    earlier: Floats = (same & (place[None, :] <= place[:, None])).astype(np.float64)
    return earlier
