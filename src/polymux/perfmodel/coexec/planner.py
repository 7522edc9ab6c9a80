"""The units of one operation, and its plans: cached, and made again when the units turn out otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.adapt import Plan, adapt
from polymux.perfmodel.coexec.compute import ComputeModel
from polymux.perfmodel.coexec.features import Features, Sample
from polymux.perfmodel.coexec.optimize import optimize
from polymux.perfmodel.coexec.problem import Objective, Problem
from polymux.perfmodel.coexec.split import value_of
from polymux.perfmodel.coexec.unit import IDLE, Load, UnitModel

_TIME = Objective()
_DRIFT = 0.01
_MOST_PLANS = 256
_LOAD_STEP = 0.01
_READY_STEP_S = 100e-6
_RUNS_AT_A_TIME = 4
"""Runs for each unit that wait before they are learned from, if no new plan is needed before."""

_Loads = tuple[tuple[str, Load], ...]
_Key = tuple[tuple[Problem, ...], Objective, _Loads, frozenset[str] | None]


@dataclass(slots=True)
class _Made:
    """A plan, and the models by which it was made or found to hold."""

    plan: Plan
    models: dict[str, ComputeModel]
    expected_s: dict[str, float]
    together_s: float

    def holds(self, units: Mapping[str, UnitModel], together_s: float) -> bool:
        """Whether the units still are as fast as the plan has them, and bringing them together costs the same."""
        if abs(together_s - self.together_s) > _DRIFT * self.plan.predicted_s:
            return False
        for part in self.plan.parts:
            model = units[part.unit].compute
            if model is self.models[part.unit]:
                continue
            now_s = model.predict(self.plan.problem.features(part.count))
            if abs(now_s / self.expected_s[part.unit] - 1) > _DRIFT:
                return False
            self.models[part.unit] = model
        return True


class Planner:
    """Plans one operation on its units.

    Parameters
    ----------
    units : sequence of UnitModel
        One or more.
    together_s : float, s
        What more than one unit costs besides, to bring them together.
    overhead : float
        What cutting a part into chunks may add to its time, relative.
    lead_s, handover_s : float, s
        As for `adapt`.

    Attributes
    ----------
    together_s : float, s
        May be set when it turns out otherwise; plans are made again where that is 1 % of their time.

    Raises
    ------
    InvalidRequest
        If there are no units, or two have the same id.

    Notes
    -----
    Not for several threads at once. A shape that was planned before costs some microseconds, a new one what `optimize`
    and `adapt` take. A plan is made again when what is learned changes the time of a part by more than 1 %.
    """

    def __init__(
        self,
        units: Sequence[UnitModel],
        *,
        together_s: float = 0.0,
        overhead: float = 0.01,
        lead_s: float = 0.0,
        handover_s: float = 0.0,
    ) -> None:
        self._units = {unit.id: unit for unit in units}
        if not units or len(self._units) < len(units):
            raise InvalidRequest(f"planner: units {[unit.id for unit in units]}; give one or more, each once")
        self.together_s = together_s
        self._lead_s, self._handover_s = lead_s, handover_s
        self._overhead = overhead
        self._made: dict[_Key, _Made] = {}
        self._waiting: list[tuple[str, Sample]] = []

    @property
    def units(self) -> tuple[UnitModel, ...]:
        """The units, with all that was learned."""
        self._learn()
        return tuple(self._units.values())

    def plan(
        self,
        problem: Problem | Sequence[Problem],
        objective: Objective = _TIME,
        *,
        loads: Mapping[str, Load] | None = None,
        only: Collection[str] | None = None,
    ) -> Plan:
        """Plan a problem.

        Parameters
        ----------
        problem : Problem or sequence of Problem
            Several: the same operation, split along different axes, of which the best one is taken.
        objective : Objective
        loads : mapping of str to Load, optional
            What else runs, by the ids of units; in steps of 1 % and 0.1 ms.
        only : collection of str, optional
            Ids of the units that may be used; None: all.

        Returns
        -------
        Plan

        Raises
        ------
        InvalidRequest
            If there is no problem, no unit is left or has room, or the power of one is unknown where energy counts.
        """
        problems = (problem,) if isinstance(problem, Problem) else tuple(problem)
        if not problems:
            raise InvalidRequest("planner: there is no problem; give one or more")
        busy = tuple(sorted((unit, _rounded(load)) for unit, load in (loads or {}).items() if load != IDLE))
        allowed = None if only is None else frozenset(only)
        key: _Key = (problems, objective, busy, allowed)
        if len(self._waiting) >= _RUNS_AT_A_TIME * len(self._units):
            self._learn()
        made = self._made.get(key)
        if made is None or not made.holds(self._units, self.together_s):
            self._learn()
            self._made.pop(key, None)
            while len(self._made) >= _MOST_PLANS:
                del self._made[next(iter(self._made))]
            made = self._made[key] = self._make(problems, objective, dict(busy), allowed)
        return made.plan

    def observe(self, unit: str, features: Features, seconds: float, *, slowdown: float = 1.0) -> None:
        """Learn from a run of a piece.

        Parameters
        ----------
        unit : str
        features : Features
        seconds : float, s
        slowdown : float
            By what else ran there, which says nothing about the unit.

        Raises
        ------
        InvalidRequest
            If there is no such unit, or the time is not positive.

        Notes
        -----
        Some microseconds; what was observed is looked at when `plan` or `units` need it.
        """
        if unit not in self._units:
            raise InvalidRequest(f"planner: there is no unit {unit!r}; there are {', '.join(self._units)}")
        self._waiting.append((unit, Sample(features, seconds / slowdown)))

    def _learn(self) -> None:
        waiting, self._waiting = self._waiting, []
        for unit in dict.fromkeys(unit for unit, _ in waiting):
            known = self._units[unit]
            runs = [sample for its, sample in waiting if its == unit]
            self._units[unit] = replace(known, compute=known.compute.observe_all(runs))

    def _make(
        self,
        problems: Sequence[Problem],
        objective: Objective,
        loads: Mapping[str, Load],
        allowed: frozenset[str] | None,
    ) -> _Made:
        units = [unit for unit in self._units.values() if allowed is None or unit.id in allowed]
        if not units:
            raise InvalidRequest(
                f"planner: none of {', '.join(sorted(allowed or ()))} is a unit; there are {', '.join(self._units)}"
            )
        plans = []
        for problem in problems:
            split = optimize(problem, units, objective, loads=loads)
            together_s = 0.0 if objective.energy else self.together_s
            plans.append(
                adapt(
                    split,
                    units,
                    loads=loads,
                    overhead=self._overhead,
                    together_s=together_s,
                    lead_s=self._lead_s,
                    handover_s=self._handover_s,
                )
            )
        best = min(plans, key=lambda plan: value_of(objective, plan.predicted_s, plan.energy_j))
        models = {unit: self._units[unit].compute for unit in best.units}
        expected = {
            part.unit: models[part.unit].predict(best.problem.features(part.count)) for part in best.parts
        }
        return _Made(best, models, expected, self.together_s)


def _rounded(load: Load) -> Load:
    """Bring loads that hardly differ together."""
    slowdown = max(1.0, round(load.slowdown / _LOAD_STEP) * _LOAD_STEP)
    return Load(slowdown, round(load.ready_s / _READY_STEP_S) * _READY_STEP_S)
