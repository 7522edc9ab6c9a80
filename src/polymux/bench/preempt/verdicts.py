"""What was aimed at, and whether it was reached."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polymux.bench.preempt.cell import DISTURBED, Cell
from polymux.bench.preempt.configurations import ALONE, TRAIN_ALONE
from polymux.bench.preempt.figures import Figures, best_alone
from polymux.bench.report import Row

P99_TARGET = 1.15
"""p99 next to training, to that of inference alone with the best way of waiting."""
WAIT_TARGET_MS = 1.0
"""Of 99 % of the waits for training to give the cores."""
TOLERANCE = 0.02
"""Part by which two figures may differ and count as equal."""
OWN, RIVAL = "polymux", "sched_idle"


def alone(cell: Cell) -> str:
    """Return the configuration that stands for inference alone."""
    return best_alone(cell.found, ALONE)


def train_alone_per_s(cell: Cell) -> float:
    """Steps a second of training alone, with the better of the two ways in which its threads wait."""
    return max(cell.found[name].train_steps_per_s or 0.0 for name in TRAIN_ALONE if name in cell.found)


def rows(cell: Cell) -> list[Row]:
    """Judge Polymux, unless others disturbed every round; what has no Polymux in it shows the rival alone."""
    found = _rows(cell)
    return [replace(row, met=None) for row in found] if cell.others > DISTURBED else found


def _rows(cell: Cell) -> list[Row]:
    where = f"{cell.model} {cell.load:.0%}"
    base_ms = cell.found[alone(cell)].p99_ms
    full = train_alone_per_s(cell)
    rival, own = cell.found.get(RIVAL), cell.found.get(OWN)
    found = []
    if rival is not None:
        found.append(_p99(f"{where}: p99 under SCHED_IDLE", rival, base_ms, "alone"))
        found.append(_kept(f"{where}: training under SCHED_IDLE", rival, full))
    if own is not None:
        found.append(_p99(f"{where}: p99", own, base_ms, "alone", P99_TARGET))
        least = 1 - cell.load
        found.append(_kept(f"{where}: training kept", own, full, f">= {least:.0%}", least * full))
        if rival is not None:
            found.append(_p99(f"{where}: p99", own, rival.p99_ms, RIVAL, 1 + TOLERANCE))
            slowest = (1 - TOLERANCE) * (rival.train_steps_per_s or 0.0)
            found.append(_kept(f"{where}: training kept", own, full, f">= {RIVAL}", slowest))
        if own.wait_p99_ms is not None:
            met = own.wait_p99_ms < WAIT_TARGET_MS
            name = f"{where}: wait for the cores, p99"
            found.append(Row(name, own.wait_p99_ms, "ms", target=f"< {WAIT_TARGET_MS:g} ms", met=met))
    return found


def _p99(name: str, figures: Figures, base_ms: float | None, against: str, factor: float = 0.0) -> Row:
    assert figures.p99_ms is not None
    target = f"<= {factor:g} x" if factor and base_ms else ""
    met = figures.p99_ms <= factor * base_ms if factor and base_ms else None
    return Row(name, figures.p99_ms, "ms", base_ms, against, target, met)


def _kept(name: str, figures: Figures, full: float, target: str = "", least_per_s: float = 0.0) -> Row:
    steps = figures.train_steps_per_s or 0.0
    met = steps >= least_per_s if target else None
    return Row(name, steps, "steps/s", full, "alone", target, met)


def result(cell: Cell) -> dict[str, Any]:
    """Write a cell as the JSON that docs/benchmarks.md describes."""
    best = alone(cell)
    configs = {"alone": {**_json(cell.found[best]), "threads": best.removeprefix("alone_")}}
    configs |= {name: _json(figures) for name, figures in cell.found.items() if name not in TRAIN_ALONE}
    return {
        "model": cell.model,
        "load": cell.load,
        "rate_per_s": cell.rate_per_s,
        "service_ms": cell.service_ms,
        "train_alone_steps_per_s": train_alone_per_s(cell),
        "rounds": cell.rounds,
        "disturbed_rounds": cell.disturbed,
        "others": cell.others,
        "configs": configs,
    }


def _json(figures: Figures) -> dict[str, Any]:
    found: dict[str, Any] = {
        "p50_ms": figures.p50_ms,
        "p99_ms": figures.p99_ms,
        "requests": figures.requests,
        "train_steps_per_s": figures.train_steps_per_s,
    }
    return found if figures.wait_p99_ms is None else {**found, "wait_p99_ms": figures.wait_p99_ms}
