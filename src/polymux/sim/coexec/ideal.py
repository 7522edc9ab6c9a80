"""The time that devices would need together if nothing were copied and each did what it can up to the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from polymux.perfmodel.coexec.problem import Problem
from polymux.perfmodel.coexec.unit import UnitModel
from polymux.sim.coexec.scenario import Failure, SpeedChange


def ideal_s(
    problem: Problem,
    units: Sequence[UnitModel],
    changes: Sequence[SpeedChange] = (),
    failures: Sequence[Failure] = (),
) -> float:
    """Work over the sum of the rates, in s; rates are those of the whole problem on one unit.

    Parameters
    ----------
    problem : Problem
    units : sequence of UnitModel
        Of each device the fastest one counts.
    changes : sequence of SpeedChange
    failures : sequence of Failure
        What a unit has done before counts.

    Returns
    -------
    float, s
        Infinite when all fail before it is done.
    """
    rates: dict[str, tuple[float, str]] = {}
    for unit in units:
        rate = 1 / unit.compute.predict(problem.features(problem.extent))
        if rate > rates.get(unit.device, (0.0, ""))[0]:
            rates[unit.device] = (rate, unit.id)
    slow = dict.fromkeys(rates, 1.0)
    ends = {failure.unit: failure.at_s for failure in failures}
    times = sorted({0.0, *(change.at_s for change in changes), *ends.values()})
    left = 1.0
    for begin, end in pairwise([*times, float("inf")]):
        for change in changes:
            if change.at_s == begin:
                slow[change.device] = change.slowdown
        together = sum(
            rate / slow[device]
            for device, (rate, unit) in rates.items()
            if begin < ends.get(unit, float("inf"))
        )
        if together * (end - begin) >= left if together else False:
            return begin + left / together
        left -= together * (end - begin) if together else 0.0
    return float("inf")
