"""Machines with times that are linear, and the exact optimum of a split over them."""

from __future__ import annotations

from itertools import combinations, permutations, product

import numpy as np
from scipy.optimize import linprog

from polymux.perfmodel.coexec.compute import constant_rate
from polymux.perfmodel.coexec.link import LinkModel
from polymux.perfmodel.coexec.unit import UnitModel
from polymux.perfmodel.energy import PowerModel


def random_machine(rng, local, copying, buses=1, power=True, duplex=True):
    units = []
    for number in range(local + copying):
        rate = float(10 ** rng.uniform(10.5, 13.5))
        link = None
        if number >= local:
            speed = float(10 ** rng.uniform(9.3, 10.6))
            link = LinkModel(
                f"bus{number % buses}", 1e-5, speed, 1e-5, speed * float(rng.uniform(0.5, 1)), duplex
            )
        watts = float(rng.uniform(5, 50))
        units.append(
            UnitModel(
                f"d{number}/u", f"d{number}", constant_rate(rate, float(rng.uniform(0, 1e-4))), link,
                PowerModel(watts, watts + float(rng.uniform(10, 300))) if power else None,
            )
        )  # fmt: skip
    return units


def assert_whole(split):
    at = 0
    for part in sorted(split.parts, key=lambda part: part.first):
        assert part.first == at
        assert part.count > 0
        at += part.count
    assert at == split.problem.extent
    assert split.bound_s <= split.makespan_s == max(part.end_s for part in split.parts)


def exact(problem, units, time=1.0, energy=0.0):
    """Least value over all choices of units and orders of copies, each by linear programming."""
    best = np.inf
    idle = sum(unit.power.idle_w for unit in units) if energy else 0.0
    for count in range(1, len(units) + 1):
        for chosen in combinations(units, count):
            copying = [i for i, unit in enumerate(chosen) if unit.link is not None]
            for order, back in product(permutations(copying), permutations(copying)):
                best = min(best, _line(problem, chosen, order, back, time + energy * idle, energy))
    return best


def _line(problem, chosen, order, back, time, energy):
    """Variables: lengths, begins of the copies back, makespan."""
    n = len(chosen)
    rows, right = [], []
    laws = [unit.compute.law for unit in chosen]
    start = [law[0] for law in laws]
    slope = [law[1] * problem.unit_work for law in laws]

    outs = [(0.0, 0.0)] * n
    for i, unit in enumerate(chosen):
        if unit.link is not None:
            outs[i] = (unit.link.out_latency_s, problem.out_nbytes / unit.link.out_bytes_per_s)
    for i, unit in enumerate(chosen):
        before = (
            [j for j in order[: order.index(i) + 1] if chosen[j].link.bus == unit.link.bus]
            if unit.link
            else []
        )
        fixed = start[i]
        row = np.zeros(2 * n + 1)
        row[n + i] = -1
        row[i] += slope[i]
        for j in before:
            link = chosen[j].link
            fixed += link.in_latency_s + problem.fixed_nbytes / link.in_bytes_per_s
            row[j] += problem.in_nbytes / link.in_bytes_per_s
        rows.append(row)
        right.append(-fixed)
        row = np.zeros(2 * n + 1)
        row[2 * n], row[n + i], row[i] = -1, 1, outs[i][1]
        rows.append(row)
        right.append(-outs[i][0])
    for place, i in enumerate(back):
        for j in back[:place]:
            if chosen[j].link.bus == chosen[i].link.bus:
                row = np.zeros(2 * n + 1)
                row[n + i], row[n + j], row[j] = -1, 1, outs[j][1]
                rows.append(row)
                right.append(-outs[j][0])
    goal = np.zeros(2 * n + 1)
    goal[2 * n] = time
    constant = 0.0
    if energy:
        for i, unit in enumerate(chosen):
            active = energy * (unit.power.busy_w - unit.power.idle_w)
            goal[i] = active * slope[i]
            constant += active * start[i]
    equal = np.concatenate([np.ones(n), np.zeros(n + 1)])[None, :]
    bounds = [(1, problem.extent)] * n + [(0, None)] * (n + 1)
    found = linprog(goal, np.array(rows), right, equal, [problem.extent], bounds, method="highs")
    return found.fun + constant if found.status == 0 else np.inf
