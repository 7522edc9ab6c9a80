"""A split of a problem over units, with the times that are predicted for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polymux.perfmodel.coexec.curves import Curve, Floats
from polymux.perfmodel.coexec.problem import Objective, Problem


@dataclass(frozen=True, slots=True)
class Part:
    """What one unit computes.

    Parameters
    ----------
    unit : str
    first, count : int
        Along the axis that is split.
    in_s, compute_s, out_s : float, s
        How long its copy in, its computation and its copy back take.
    start_s, end_s : float, s
        When its copy in (or, without one, its computation) begins, and when all of it is back.
    """

    unit: str
    first: int
    count: int
    in_s: float
    compute_s: float
    out_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Split:
    """A problem's parts, in the order of their copies in.

    Parameters
    ----------
    problem : Problem
    parts : tuple of Part
    back : tuple of str
        Units in the order of their copies back.
    makespan_s : float, s
    energy_j : float, optional, J
        Of all devices over the makespan; None: a unit has no model of its power.
    bound_s : float, s
        No split of these units is faster: what a machine would need whose copies never wait for each other.
    """

    problem: Problem
    parts: tuple[Part, ...]
    back: tuple[str, ...]
    makespan_s: float
    energy_j: float | None
    bound_s: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A split before it is rounded.

    Parameters
    ----------
    value : float
        Of the objective.
    counts : array of shape (units,)
        Lengths; 0: the unit is not used.
    order, back : tuple of int
        All units by number, in the order of their copies in and back.
    """

    value: float
    counts: Floats
    order: tuple[int, ...]
    back: tuple[int, ...]


def evaluated(
    curves: Sequence[Curve],
    objective: Objective,
    counts: Floats,
    order: tuple[int, ...],
    back: tuple[int, ...],
) -> Candidate:
    """Say what a split is worth by the curves."""
    lengths = counts.tolist()
    makespan = max(end for _, end in schedule(curves, lengths, order, back))
    energy = energy_j(curves, lengths, makespan) if objective.energy else None
    return Candidate(value_of(objective, makespan, energy), counts, order, back)


def value_of(objective: Objective, makespan_s: float, energy: float | None) -> float:
    """Value of the objective for this makespan, in s, and energy, in J; an unknown energy counts as none."""
    return objective.time * makespan_s + objective.energy * (energy or 0.0)


def schedule(
    curves: Sequence[Curve], counts: Sequence[float], order: Sequence[int], back: Sequence[int]
) -> list[tuple[float, float]]:
    """Say when each part begins and ends.

    Parameters
    ----------
    curves : sequence of Curve
    counts : sequence of float
        Length of each unit's part; 0: it is not used.
    order, back : sequence of int
        Units by number, in the order of their copies in and back; a copy waits for the one before it on its bus.

    Returns
    -------
    list of (float, float), s
        For each unit; (0, 0) for one that is not used.
    """
    inward: dict[str, float] = {}
    times = [(0.0, 0.0)] * len(curves)
    computed = [0.0] * len(curves)
    for unit in order:
        curve, count = curves[unit], counts[unit]
        if not count:
            continue
        begin = inward.get(curve.bus, 0.0) if curve.bus is not None else curve.ready_s
        arrived = begin + curve.in_s(count)
        if curve.bus is not None:
            inward[curve.bus] = begin + curve.in_fixed_s + curve.bus_unit_s * count
        computed[unit] = max(arrived, curve.ready_s) + curve.compute_at(count)
        times[unit] = (begin, computed[unit])
    outward: dict[str, float] = {}
    for unit in back:
        curve, count = curves[unit], counts[unit]
        if not count or curve.bus is None:
            continue
        link = curve.unit.link
        free = outward.get(curve.bus, 0.0 if link is None or link.duplex else inward[curve.bus])
        end = max(computed[unit], free) + curve.out_s(count)
        outward[curve.bus] = end
        times[unit] = (times[unit][0], end)
    return times


def energy_j(curves: Sequence[Curve], counts: Sequence[float], makespan_s: float) -> float | None:
    """Energy of all devices over the makespan, in J; None where a unit has no model of its power.

    Notes
    -----
    A device has its idle power all the time, and the difference to its busy power while it computes.
    """
    total, seen = 0.0, set()
    for curve, count in zip(curves, counts, strict=True):
        power = curve.unit.power
        if power is None:
            return None
        total += (power.busy_w - power.idle_w) * curve.compute_at(count)
        if curve.unit.device not in seen:
            seen.add(curve.unit.device)
            total += power.idle_w * makespan_s
    return total


def energies_j(curves: Sequence[Curve], counts: Floats, makespans: Floats) -> Floats:
    """Energy of many splits at once, in J, of units that all have a model of their power.

    Parameters
    ----------
    curves : sequence of Curve
    counts : array of shape (splits, units)
    makespans : array of shape (splits,), s
    """
    total = np.zeros(len(makespans))
    seen = set()
    for unit, curve in enumerate(curves):
        power = curve.unit.power
        if power is None:
            continue
        busy = np.where(counts[:, unit] > 0, np.interp(counts[:, unit], curve.counts, curve.compute_s), 0.0)
        total += (power.busy_w - power.idle_w) * busy
        if curve.unit.device not in seen:
            seen.add(curve.unit.device)
            total += power.idle_w * makespans
    return total
