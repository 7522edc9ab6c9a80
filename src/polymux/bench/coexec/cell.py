"""One row: a case on a pair of units, against each of them alone, in the same rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from polymux.bench.coexec.machine import Pair
from polymux.bench.coexec.shapes import Case
from polymux.coexec import Report, Session
from polymux.coexec.operation import Array

WARM_UPS = 2
"""Runs of each way that do not count: programs are built, models refined, memory touched."""
IDEAL_TARGET = 1.03
PREDICTION_TARGET = 0.03
PLAN_TARGET = 0.01
SAME = 1.01
"""Slower by less than this is the spread of one run against the next."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How often a row is measured: `rounds` at least, more while they take less than `seconds`, at most `most`."""

    rounds: int
    seconds: float
    most: int


def measure(session: Session, case: Case, pair: Pair, budget: Budget) -> dict[str, Any]:
    """Measure a row.

    Returns
    -------
    dict
        As docs/benchmarks.md describes it.
    """
    arrays = case.arrays(session)
    shapes = case.operation.outputs(*arrays, **case.parameters)
    out = tuple(session.empty(shape, dtype) for shape, dtype in shapes)
    ways = [_way(session, case, pair, arrays, out, devices) for devices in (*pair.units, pair.units)]
    reports: list[Report] = []
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(WARM_UPS):
        for way in ways:
            way()
    begun = perf_counter()
    while len(times[0]) < budget.rounds or (
        len(times[0]) < budget.most and perf_counter() - begun < budget.seconds
    ):
        for way, its in zip(ways, times, strict=True):
            its.append(way())
        assert session.last is not None, "a call has just ended"
        reports.append(session.last)
    first_s, second_s, both_s = map(median, times)
    used = {run.unit for run in reports[-1].runs}
    return {
        "op": case.operation.name,
        "shape": case.label,
        "devices": pair.name,
        "single_best_s": min(first_s, second_s),
        "coexec_s": both_s,
        "ideal_s": 1 / (1 / first_s + 1 / second_s),
        "predicted_s": median(report.predicted_s for report in reports),
        "plan_s": median(report.plan_s for report in reports),
        "units_used": len(used),
        "large": case.is_large,
        "rounds": len(times[0]),
    }


def verdicts(row: dict[str, Any]) -> dict[str, bool]:
    """Tell which targets a row meets."""
    found = {
        "single": row["coexec_s"] <= row["single_best_s"] * SAME,
        "prediction": abs(row["predicted_s"] - row["coexec_s"]) <= PREDICTION_TARGET * row["coexec_s"],
        "plan": row["plan_s"] <= PLAN_TARGET * row["coexec_s"],
    }
    if row["large"]:
        found["ideal"] = row["coexec_s"] <= IDEAL_TARGET * row["ideal_s"]
    return found


def _way(
    session: Session,
    case: Case,
    pair: Pair,
    arrays: tuple[Array, ...],
    out: tuple[Array, ...],
    devices: str | tuple[str, ...],
) -> Callable[[], float]:
    names = (devices,) if isinstance(devices, str) else devices

    def run() -> float:
        begun = perf_counter()
        session.run(
            case.operation, *arrays, out=out, devices=names, precision=pair.precision, **case.parameters
        )
        return perf_counter() - begun

    return run
