"""Time against energy: the splits of which no other is better in both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polymux.perfmodel.coexec.adapt import Plan, adapt
from polymux.perfmodel.coexec.optimize import optimize
from polymux.perfmodel.coexec.problem import Objective, Problem
from polymux.perfmodel.coexec.unit import UnitModel

_STEPS = 33
_SPAN = 2.0
"""Weights go from 1/100 to 100 times what makes time and energy count alike."""


def pareto(problems: Sequence[Problem], units: Sequence[UnitModel]) -> tuple[Plan, ...]:
    """Find plans from the fastest to the thriftiest.

    Parameters
    ----------
    problems : sequence of Problem
        The same operation, split along different axes.
    units : sequence of UnitModel
        All with a model of their power.

    Returns
    -------
    tuple of Plan
        By time; none is better in both time and energy than another.

    Raises
    ------
    InvalidRequest
        If the power of a unit is unknown.

    Notes
    -----
    Minimises weighted sums, so plans that lie between two others but not below the line through them are not found.
    """
    fastest = _best(problems, units, Objective())
    thriftiest = _best(problems, units, Objective(0.0, 1.0))
    alike = fastest.predicted_s / max(fastest.energy_j or 0.0, 1e-30)
    weights = alike * np.logspace(-_SPAN, _SPAN, _STEPS)
    found = [
        fastest,
        thriftiest,
        *(_best(problems, units, Objective(1.0, float(weight))) for weight in weights),
    ]
    found.sort(key=lambda plan: (plan.predicted_s, plan.energy_j or 0.0))
    kept: list[Plan] = []
    for plan in found:
        if not kept or (plan.energy_j or 0.0) < (kept[-1].energy_j or 0.0) * (1 - 1e-6):
            kept.append(plan)
    return tuple(kept)


def _best(problems: Sequence[Problem], units: Sequence[UnitModel], objective: Objective) -> Plan:
    plans = [adapt(optimize(problem, units, objective), units) for problem in problems]
    return min(
        plans, key=lambda plan: objective.time * plan.predicted_s + objective.energy * (plan.energy_j or 0.0)
    )
