"""The split of a problem over units that makes time, energy or a sum of both least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.balance import balance
from polymux.perfmodel.coexec.chains import Equations, Order, first_orders, shared, swapped
from polymux.perfmodel.coexec.curves import Curve, Floats, Masks, choices, make_curves
from polymux.perfmodel.coexec.problem import Objective, Problem
from polymux.perfmodel.coexec.split import Part, Split, energies_j, energy_j, schedule
from polymux.perfmodel.coexec.unit import Load, UnitModel

Solver = Literal["closed", "milp"]
Candidate = tuple[float, Floats, Order, Order]
"""Value of the objective, lengths, order of the copies in and back."""

_TIME = Objective()
_REFINED = 6
"""Best choices of units for which times are taken as linear once more, around where they came out."""


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
    order = tuple(range(len(curves)))
    if shared(curves):
        found = _best_chain(problem, curves, objective, masks, counts)
    else:
        found = _best_balance(curves, objective, makespans, counts, order)
    if solver == "milp":
        from polymux.perfmodel.coexec.milp import solve_milp  # needs SciPy, which is an extra

        better = solve_milp(problem, curves, objective, found)
        found = min(found, better, key=lambda its: its[0])
    return make_split(problem, curves, found, float(makespans.min()))


def value_of(objective: Objective, makespan_s: float, energy: float | None) -> float:
    """Value of the objective for this makespan, in s, and energy, in J; an unknown energy counts as none."""
    return objective.time * makespan_s + objective.energy * (energy or 0.0)


def _value(
    curves: Sequence[Curve], counts: Sequence[float], makespan_s: float, objective: Objective
) -> float:
    energy = energy_j(curves, counts, makespan_s) if objective.energy else None
    return value_of(objective, makespan_s, energy)


def make_split(problem: Problem, curves: Sequence[Curve], found: Candidate, bound_s: float) -> Split:
    """Round the lengths to whole numbers and say when each part begins and ends."""
    _, lengths, order, back = found
    counts = _whole(curves, lengths, problem.extent)
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
    curves: Sequence[Curve], objective: Objective, makespans: Floats, counts: Floats, order: Order
) -> Candidate:
    values = _values(curves, counts, makespans, objective)
    best = int(np.argmin(values))
    return float(values[best]), counts[best], order, order


def _best_chain(
    problem: Problem, curves: Sequence[Curve], objective: Objective, masks: Masks, around: Floats
) -> Candidate:
    """Solve all choices in the first orders, the best ones once more; then let neighbours change places."""
    orders = first_orders(curves)
    equations = Equations(curves, problem.extent)
    lines = equations.lines(around)
    found: list[tuple[float, Masks, Floats, Order, bool]] = []
    for order in orders:
        for reverse in (False, True):
            makespans, counts = equations.solve(masks, lines, order, reverse=reverse)
            values = _values(curves, counts, makespans, objective)
            found += [
                (float(values[row]), masks[row], counts[row], order, reverse)
                for row in np.argsort(values)[:_REFINED]
                if values[row] < np.inf
            ]
    if not found:
        raise InvalidRequest(
            f"{problem.op} of {problem.sizes}: no split of it could be found; give fewer units"
        )
    found.sort(key=lambda its: its[0])
    refined = [_refined(equations, curves, objective, *its[1:]) for its in found[:_REFINED]]
    best = min(refined, key=lambda its: its[0])
    return best if len(orders[0]) < 4 else _improved(equations, curves, objective, best)


def _refined(
    equations: Equations,
    curves: Sequence[Curve],
    objective: Objective,
    mask: Masks,
    counts: Floats,
    order: Order,
    reverse: bool,
) -> Candidate:
    """Take times as linear around where the lengths came out, until that changes nothing."""
    back = order[::-1] if reverse else order
    best = _evaluated(curves, objective, counts, order, back)
    for _ in range(3):
        makespans, rows = equations.solve(
            mask[None, :], equations.lines(best[1][None, :]), order, reverse=reverse
        )
        if not makespans[0] < np.inf:
            break
        candidate = _evaluated(curves, objective, rows[0], order, back)
        if candidate[0] >= best[0] * (1 - 1e-6):
            break
        best = candidate
    return best


def _improved(
    equations: Equations, curves: Sequence[Curve], objective: Objective, best: Candidate
) -> Candidate:
    """Let neighbours in the order of copies change places as long as that helps."""
    for _ in range(len(curves)):
        candidates = []
        mask = best[1] > 0
        reverse = best[3] != best[2]
        lines = equations.lines(best[1][None, :])
        for order in swapped(curves, best[2]):
            makespans, rows = equations.solve(mask[None, :], lines, order, reverse=reverse)
            if makespans[0] < np.inf:
                back = order[::-1] if reverse else order
                candidates.append(_evaluated(curves, objective, rows[0], order, back))
        better = min(candidates, key=lambda its: its[0], default=best)
        if better[0] >= best[0] * (1 - 1e-5):
            return best
        best = better
    return best


def _evaluated(
    curves: Sequence[Curve], objective: Objective, counts: Floats, order: Order, back: Order
) -> Candidate:
    lengths = [float(count) for count in counts]
    makespan = max(end for _, end in schedule(curves, lengths, order, back))
    return _value(curves, lengths, makespan, objective), counts, order, back


def _values(curves: Sequence[Curve], counts: Floats, makespans: Floats, objective: Objective) -> Floats:
    found = makespans < np.inf
    finite = np.where(found, makespans, 0.0)
    values = objective.time * finite
    if objective.energy:
        values = values + objective.energy * energies_j(curves, counts, finite)
    return np.where(found, values, np.inf)
