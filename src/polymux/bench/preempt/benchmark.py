"""The benchmark ``polymux bench preempt``."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from polymux.bench.cores import choose_cores
from polymux.bench.effort import Effort
from polymux.bench.preempt.cell import DISTURBED, Cell, Size, measure_cell, opened, opened_trainers
from polymux.bench.preempt.configurations import LOADS, MODELS
from polymux.bench.preempt.table import table
from polymux.bench.preempt.trainer import require_torch
from polymux.bench.preempt.verdicts import alone, result, rows, train_alone_per_s
from polymux.bench.report import Progress, Report

FULL_SIZE = Size(MODELS, LOADS, 60, (3.0, 8.0), (3, 6), budget_s=200.0)
"""Some 20 minutes."""
QUICK_SIZE = Size(MODELS[:1], LOADS, 20, (1.0, 2.0), (1, 1), budget_s=60.0)


def run(effort: Effort, progress: Progress) -> Report:
    """Measure every configuration."""
    size = QUICK_SIZE if effort.rounds <= 2 else FULL_SIZE
    chosen = replace(size, models=effort.served or size.models, loads=effort.loads or size.loads)
    return measure(chosen, progress)


def measure(size: Size, progress: Progress) -> Report:
    """Measure what a size says.

    Raises
    ------
    PolymuxError
        If PyTorch or the package of a model is missing, or a process of the benchmark fails.
    """
    require_torch()
    chosen = choose_cores()
    cores = (chosen.client, chosen.server) if chosen.pinned else tuple(chosen.others)
    kinds = sorted({way.trainer for way in size.configurations if way.trainer})
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as name:
        folder = Path(name)
        progress("starting the training processes")
        with opened_trainers(kinds, folder, cores) as trainers:
            for model in size.models:
                progress(f"{model}: time of a request")
                with opened(model, folder, cores, trainers) as bench:
                    service_ns = bench.service_ns()
                    cells += [
                        measure_cell(bench, model, load, service_ns, size, progress) for load in size.loads
                    ]
    return Report(
        "preempt",
        "inference next to training on the same cores",
        tuple(row for cell in cells for row in rows(cell)),
        [result(cell) for cell in cells],
        _notes(cells, cores),
        tuple(table(cell, alone(cell), train_alone_per_s(cell)) for cell in cells),
    )


def _notes(cells: Sequence[Cell], cores: Sequence[int]) -> tuple[str, ...]:
    notes = [
        f"all processes on {'cores' if len(cores) > 1 else 'core'} {', '.join(map(str, cores))}; a load is requests a"
        " second x the median time of a request alone",
        "times count from when a request was due; percentiles of the requests of all rounds; every configuration of a"
        " round has the same Poisson arrivals",
        "training: steps in the same seconds; kept: of those a second of training alone",
        "rounds: "
        + "; ".join(
            f"{cell.model} {cell.load:.0%} {cell.rounds} of {cell.seconds:.0f} s"
            + (f" and {cell.disturbed} discarded" if cell.disturbed else "")
            for cell in cells
        ),
    ]
    if len(cores) == 1:
        notes.append("one core for everything")
    busiest = max(cell.others for cell in cells)
    if busiest > DISTURBED:
        notes.append(
            f"other processes took up to {busiest:.0%} of the cores: the figures are those of a busy machine; run it"
            " again when it is idle"
        )
    return tuple(notes)
