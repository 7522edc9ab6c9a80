"""The split of a problem over units that makes time, energy or a sum of both least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.balance import balance
from polymux.perfmodel.coexec.chains import shared
from polymux.perfmodel.coexec.curves import Curve, Floats, choices, make_curves
from polymux.perfmodel.coexec.problem import Objective, Problem
from polymux.perfmodel.coexec.search import Search
from polymux.perfmodel.coexec.split import Candidate, Part, Split, energies_j, energy_j, schedule
from polymux.perfmodel.coexec.unit import Load, UnitModel

Solver = Literal["closed", "milp"]

_TIME = Objective()


def optimize(
    problem: Problem,
    units: Sequence[UnitModel],
    objective: Objective = _TIME,
    *,
    loads: Mapping[str, Load] | None = None,
    solver: Solver = "closed",
) -> Split:
    """Split a problem over units.

    Parameters
    ----------
    problem : Problem
    units : sequence of UnitModel
        Up to eight devices; units of the same device are alternatives.
    objective : Objective
    loads : mapping of str to Load, optional
        What else runs, by the ids of units.
    solver : {"closed", "milp"}
        ``"milp"``: HiGHS, through SciPy, which also chooses freely the order of copies; it begins with the closed form
        and takes tens of milliseconds.

    Returns
    -------
    Split
        Lengths are whole numbers, not yet multiples of tiles (`adapt`).

    Raises
    ------
    InvalidRequest
        If there are no units, none has room, a unit has no model of its power where energy counts, or SciPy is missing.

    Notes
    -----
    The least value is reached where all units of some choice end together: with fewer, the objective is linear in
    what is moved between two of them, up to where one has nothing left. So all choices are solved at once and the
    best one taken. Under 1 ms for three devices and 10 ms for eight (docs/decisions/0041).
    """
    curves = make_curves(problem, units, loads or {})
    if objective.energy:
        _check_power(problem, curves)
    masks = choices(tuple(curve.unit.device for curve in curves))
    makespans, counts = balance(curves, masks, problem.extent)
    found = _best_balance(curves, objective, makespans, counts)
    if shared(curves):
        chain = Search(curves, objective, masks, problem.extent).best(counts)
        if chain is None:
            raise InvalidRequest(f"{problem.op} of {problem.sizes}: no split was found; give fewer units")
        found = chain
    if solver == "milp":
        from polymux.perfmodel.coexec.milp import solve_milp  # needs SciPy, which is an extra

        better = solve_milp(problem, curves, objective, found)
        found = min(found, better, key=lambda its: its.value)
    return make_split(problem, curves, found, float(makespans.min()))


def make_split(problem: Problem, curves: Sequence[Curve], found: Candidate, bound_s: float) -> Split:
    """Round the lengths to whole numbers and say when each part begins and ends."""
    order, back = found.order, found.back
    counts = _whole(curves, found.counts, problem.extent)
    times = schedule(curves, counts, order, back)
    first, begins = 0, []
    for count in counts:
        begins.append(first)
        first += count
    parts = tuple(
        Part(
            curves[unit].unit.id,
            begins[unit],
            counts[unit],
            curves[unit].in_s(counts[unit]),
            curves[unit].compute_at(counts[unit]),
            curves[unit].out_s(counts[unit]),
            *times[unit],
        )
        for unit in order
        if counts[unit]
    )
    makespan = max(part.end_s for part in parts)
    return Split(
        problem,
        parts,
        tuple(curves[unit].unit.id for unit in back if counts[unit]),
        makespan,
        energy_j(curves, counts, makespan),
        min(bound_s, makespan),
    )


def _whole(curves: Sequence[Curve], lengths: Floats, extent: int) -> list[int]:
    """Round lengths down to whole numbers; what is left, less than one for each, goes to the fastest unit used."""
    exact = lengths * (extent / lengths.sum())
    counts = [int(length + 1e-6) for length in exact]
    used = [unit for unit, count in enumerate(counts) if count]
    fastest = min(used, key=lambda unit: curves[unit].compute_s[-1] / curves[unit].counts[-1])
    counts[fastest] += extent - sum(counts)
    return counts


def _check_power(problem: Problem, curves: Sequence[Curve]) -> None:
    unknown = [curve.unit.id for curve in curves if curve.unit.power is None]
    if unknown:
        raise InvalidRequest(
            f"{problem.op}: nothing is known of the power of {', '.join(unknown)}; give it a power model, or minimise"
            " the time"
        )


def _best_balance(
    curves: Sequence[Curve], objective: Objective, makespans: Floats, counts: Floats
) -> Candidate:
    found = makespans < np.inf
    values = objective.time * np.where(found, makespans, 0.0)
    if objective.energy:
        values = values + objective.energy * energies_j(curves, counts, np.where(found, makespans, 0.0))
    best = int(np.argmin(np.where(found, values, np.inf)))
    order = tuple(range(len(curves)))
    return Candidate(float(values[best]), counts[best], order, order)
