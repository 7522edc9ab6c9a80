"""The split as a mixed-integer program, for HiGHS through SciPy: the order of copies is free, times are linear.

Variables are, for each unit, whether it is used, the length of its part, and when its copy in, its computation and its
copy back begin; for each two copies on one bus, which is first; and the makespan. Compute times are linear around the
lengths of the split that it begins with, and the program is solved again around what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.curves import Curve, Floats
from polymux.perfmodel.coexec.problem import Objective, Problem
from polymux.perfmodel.coexec.split import Candidate, evaluated, schedule

_ROUNDS = 2
_GAP = 1e-4
_LIMIT_S = 10.0


def solve_milp(
    problem: Problem, curves: Sequence[Curve], objective: Objective, begin: Candidate
) -> Candidate:
    """Solve the program, beginning with a split.

    Parameters
    ----------
    problem : Problem
    curves : sequence of Curve
    objective : Objective
    begin : Candidate
        Its makespan is the horizon.

    Returns
    -------
    Candidate
        `begin` where nothing better was found.

    Raises
    ------
    InvalidRequest
        If SciPy is missing.
    """
    best = begin
    for _ in range(_ROUNDS):
        found = _Program(problem, curves, objective, best).solve()
        if found is None or found.value >= best.value * (1 - 1e-6):
            break
        best = found
    return best


class _Program:
    """The rows of one program: variables in blocks of one for each unit, then the makespan, then pairs."""

    def __init__(
        self, problem: Problem, curves: Sequence[Curve], objective: Objective, begin: Candidate
    ) -> None:
        self.problem, self.curves, self.objective = problem, curves, objective
        self.units = len(curves)
        self.used, self.length, self.inward, self.compute, self.outward = (
            block * self.units for block in range(5)
        )
        self.makespan = 5 * self.units
        self.pairs = self._pairs()
        self.count = self.makespan + 1 + len(self.pairs)
        lengths, order, back = begin.counts, begin.order, begin.back
        self.horizon = 1.5 * max(end for _, end in schedule(curves, list(map(float, lengths)), order, back))
        used = max(1, int(np.count_nonzero(lengths)))
        around = np.where(lengths > 0, lengths, problem.extent / used)
        lines = [curve.tangents(around[unit : unit + 1]) for unit, curve in enumerate(curves)]
        self.start = [max(0.0, float(start[0])) for start, _ in lines]
        self.slope = [float(slope[0]) for _, slope in lines]
        self.rows: list[Floats] = []
        self.lows: list[float] = []

    def solve(self) -> Candidate | None:
        """Solve it, and say what its schedule takes by the curves."""
        try:
            from scipy.optimize import Bounds, LinearConstraint, milp
        except ModuleNotFoundError as error:
            raise InvalidRequest("the solver milp needs SciPy: pip install scipy") from error
        self._write_rows()
        upper = np.concatenate(
            [
                np.ones(self.units),
                np.full(self.units, float(self.problem.extent)),
                np.full(3 * self.units + 1, self.horizon),
                np.ones(len(self.pairs)),
            ]
        )
        whole = np.zeros(self.count)
        whole[: self.units] = 1
        whole[self.makespan + 1 :] = 1
        found = milp(
            self._goal(),
            integrality=whole,
            bounds=Bounds(np.zeros(self.count), upper),
            constraints=LinearConstraint(np.array(self.rows), np.array(self.lows), np.inf),
            options={"mip_rel_gap": _GAP, "time_limit": _LIMIT_S},
        )
        return None if found.x is None else self._candidate(found.x)

    def _pairs(self) -> list[tuple[int, int, int, int]]:
        """Copies that wait for each other: (1 for back, unit, 1 for back, unit)."""
        pairs = []
        for one, other in combinations(range(self.units), 2):
            bus = self.curves[one].bus
            if bus is None or bus != self.curves[other].bus:
                continue
            pairs += [(0, one, 0, other), (1, one, 1, other)]
            link = self.curves[one].unit.link
            if link is not None and not link.duplex:
                pairs += [(0, one, 1, other), (1, one, 0, other)]
        return pairs

    def _at_least(self, low: float, *terms: tuple[int, float]) -> None:
        row = np.zeros(self.count)
        for place, factor in terms:
            row[place] += factor
        self.rows.append(row)
        self.lows.append(low)

    def _copy(self, back: int, unit: int) -> tuple[int, float, float]:
        """Place of a copy's begin, and its time: of every part, and for each unit of its length."""
        curve = self.curves[unit]
        if back:
            return self.outward + unit, curve.out_fixed_s, curve.out_unit_s
        return self.inward + unit, curve.in_fixed_s, curve.in_unit_s

    def _write_rows(self) -> None:
        extent = float(self.problem.extent)
        for unit, curve in enumerate(self.curves):
            used, length = self.used + unit, self.length + unit
            compute, outward = self.compute + unit, self.outward + unit
            self._at_least(0, (length, 1), (used, -float(curve.counts[0])))
            self._at_least(0, (used, extent), (length, -1))
            inward, fixed, each = self._copy(0, unit)
            self._at_least(0, (compute, 1), (inward, -1), (used, -fixed), (length, -each))
            self._at_least(0, (compute, 1), (used, -curve.ready_s))
            self._at_least(
                0, (outward, 1), (compute, -1), (used, -self.start[unit]), (length, -self.slope[unit])
            )
            _, fixed, each = self._copy(1, unit)
            self._at_least(0, (self.makespan, 1), (outward, -1), (used, -fixed), (length, -each))
        lengths = [(self.length + unit, 1.0) for unit in range(self.units)]
        self._at_least(extent, *lengths)
        self._at_least(-extent, *[(place, -1.0) for place, _ in lengths])
        for device in {curve.unit.device for curve in self.curves}:
            alike = [unit for unit, curve in enumerate(self.curves) if curve.unit.device == device]
            self._at_least(-1, *[(self.used + unit, -1.0) for unit in alike])
        for number, (back, one, other_back, other) in enumerate(self.pairs):
            first = self.makespan + 1 + number
            begin, fixed, each = self._copy(back, one)
            then, other_fixed, other_each = self._copy(other_back, other)
            each = each if back else self.curves[one].bus_unit_s
            other_each = other_each if other_back else self.curves[other].bus_unit_s
            far = self.horizon
            self._at_least(
                -far,
                (then, 1),
                (begin, -1),
                (self.used + one, -fixed),
                (self.length + one, -each),
                (first, -far),
            )
            self._at_least(
                0,
                (begin, 1),
                (then, -1),
                (self.used + other, -other_fixed),
                (self.length + other, -other_each),
                (first, far),
            )

    def _goal(self) -> Floats:
        goal = np.zeros(self.count)
        goal[self.makespan] = self.objective.time
        if self.objective.energy:
            seen = set()
            for unit, curve in enumerate(self.curves):
                power = curve.unit.power
                if power is None:
                    continue
                active = self.objective.energy * (power.busy_w - power.idle_w)
                goal[self.used + unit] = active * self.start[unit]
                goal[self.length + unit] = active * self.slope[unit]
                if curve.unit.device not in seen:
                    seen.add(curve.unit.device)
                    goal[self.makespan] += self.objective.energy * power.idle_w
        return goal

    def _candidate(self, found: Floats) -> Candidate:
        used = found[: self.units] > 0.5
        lengths = np.where(used, found[self.length : self.length + self.units], 0.0)
        order = tuple(map(int, np.argsort(found[self.inward : self.inward + self.units], kind="stable")))
        back = tuple(map(int, np.argsort(found[self.outward : self.outward + self.units], kind="stable")))
        return evaluated(self.curves, self.objective, lengths, order, back)
