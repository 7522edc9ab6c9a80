"""Says what came of a simulated co-execution, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.adapt import Plan
from polymux.perfmodel.coexec.optimize import optimize
from polymux.perfmodel.coexec.unit import UnitModel
from polymux.planning.coexec_file import CoexecFile
from polymux.sim.coexec.outcome import CoexecOutcome


def results(
    file: CoexecFile, outcome: CoexecOutcome, frontier: Sequence[Plan], plan_s: float
) -> dict[str, Any]:
    """Everything as values for JSON.

    Parameters
    ----------
    file : CoexecFile
    outcome : CoexecOutcome
    frontier : sequence of Plan
        From the fastest to the thriftiest; may be empty.
    plan_s : float, s
        What planning took.
    """
    plan = outcome.plan
    return {
        "operation": file.title,
        "ideal_s": outcome.ideal_s,
        "predicted_s": plan.predicted_s,
        "makespan_s": outcome.makespan_s,
        "over_ideal": outcome.makespan_s / outcome.ideal_s,
        "single_best_s": single_best_s(plan, file.scenario.units),
        "energy_j": outcome.energy_j,
        "plan_s": plan_s,
        "split_by": plan.problem.axis,
        "error_bound": file.bound,
        "refused": list(file.refused),
        "lost": list(outcome.lost),
        "parts": [
            {
                "unit": part.unit,
                "first": part.first,
                "count": part.count,
                "chunks": [
                    [chunk.first, chunk.count, chunk.across_first, chunk.across_count]
                    for chunk in part.chunks
                ],
                "predicted_end_s": part.end_s,
                "computed": computed(outcome, part.unit),
                "end_s": end_s(outcome, part.unit),
            }
            for part in plan.parts
        ],
        "pareto": [
            {"time_s": its.predicted_s, "energy_j": its.energy_j, "units": list(its.units)}
            for its in frontier
        ],
    }


def print_report(console: Console, file: CoexecFile, outcome: CoexecOutcome, plan_s: float) -> None:
    """Print the split and how it went."""
    plan = outcome.plan
    console.print(
        f"{file.title}; error at most {file.bound:.1e} of the sums of absolute values", highlight=False
    )
    if file.refused:
        console.print(
            f"not used, as they round more than allowed: {', '.join(file.refused)}", highlight=False
        )
    table = Table(box=None, pad_edge=False)
    table.add_column("unit", no_wrap=True)
    for column in ("part", "of all", "chunks", "copies in", "computes", "predicted end", "end", "computed"):
        table.add_column(column, justify="right")
    copies = {part.unit: part.in_s for part in plan.split.parts}
    for part in plan.parts:
        table.add_row(
            part.unit,
            f"{part.count:,}",
            f"{part.count / plan.problem.extent:.1%}",
            str(len(part.chunks)),
            _ms(copies.get(part.unit, 0.0)),
            _ms(part.compute_s),
            _ms(part.end_s),
            "failed" if part.unit in outcome.lost else _ms(end_s(outcome, part.unit)),
            f"{computed(outcome, part.unit):,}",
        )
    console.print(table)
    best_s = single_best_s(plan, file.scenario.units)
    rows = [
        ("predicted", _ms(plan.predicted_s)),
        (
            "simulated",
            f"{_ms(outcome.makespan_s)}, {outcome.makespan_s / outcome.ideal_s:.3f} x what is possible",
        ),
        ("possible", f"{_ms(outcome.ideal_s)} (work over the sum of the rates, without copies)"),
        ("best unit alone", f"{_ms(best_s)}, {best_s / outcome.makespan_s:.2f} x as long"),
        ("planning", f"{plan_s * 1e3:.2f} ms"),
    ]
    if outcome.energy_j is not None:
        rows.insert(4, ("energy", f"{outcome.energy_j:,.1f} J"))
    summary = Table(box=None, pad_edge=False, show_header=False)
    for row in rows:
        summary.add_row(*row)
    console.print(summary)


def print_frontier(console: Console, frontier: Sequence[Plan]) -> None:
    """Print the plans from the fastest to the thriftiest."""
    table = Table(
        title="Time against energy", title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    table.add_column("time", justify="right")
    table.add_column("energy", justify="right")
    table.add_column("parts")
    for plan in frontier:
        parts = ", ".join(f"{part.unit} {part.count / plan.problem.extent:.0%}" for part in plan.parts)
        table.add_row(_ms(plan.predicted_s), f"{plan.energy_j or 0.0:,.1f} J", parts)
    console.print(table)


def single_best_s(plan: Plan, units: Sequence[UnitModel]) -> float:
    """Time of the unit that is fastest alone, copies included, in s."""
    times = []
    for unit in units:
        try:
            times.append(optimize(plan.problem, [unit]).makespan_s)
        except InvalidRequest:  # no room for a piece
            continue
    return min(times)


def computed(outcome: CoexecOutcome, unit: str) -> int:
    """Length that a unit has computed; of pieces side by side their part."""
    across = outcome.plan.problem.across
    chunks = [span.chunk for span in outcome.spans if span.unit == unit and span.kind == "compute"]
    return round(sum(its.count * (its.across_count / across if its.across_count else 1) for its in chunks))


def end_s(outcome: CoexecOutcome, unit: str) -> float:
    """When a unit's last result was back, in s."""
    return max((span.end_ns for span in outcome.spans if span.unit == unit), default=0) / 1e9


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"
