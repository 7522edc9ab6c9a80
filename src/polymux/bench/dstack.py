"""The figures of the D-STACK paper and what follows from its data, and our policy on the same workloads; simulated.

Nothing is measured here: the engine of requests and its policies run in virtual time (`polymux.sim.serving`).

References
----------
Dhakal, Kulkarni, Ramakrishnan, "D-STACK: High Throughput DNN Inference by Effective Multiplexing and Spatio-Temporal
Scheduling of GPUs".
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from polymux.bench import dstack_beyond, dstack_paper
from polymux.bench.dstack_figure import Figure
from polymux.bench.effort import Effort
from polymux.bench.report import Progress, Report

TOLERANCE = 0.03
"""Part of the expected figure by which D-STACK's may differ."""


class FigureReport(Report):
    """A report whose table has the paper's figures beside the expected and the computed ones."""

    def print(self, console: Console) -> None:
        """Print the table and the notes."""
        console.print(f"[bold]{self.name}: {self.title}[/]", highlight=False)
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
        table.add_column("figure", no_wrap=True)
        for heading in ("paper", "expected", "computed"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("target", no_wrap=True)
        table.add_column("", no_wrap=True)
        for result in cast(list[dict[str, Any]], self.results):
            expected, unit = result["expected"], result["unit"]
            table.add_row(
                result["figure"],
                result["paper"],
                "" if expected is None else _number(expected, unit),
                _number(result["computed"], unit),
                result["target"],
                {None: "", True: "[green]met[/]", False: "[red bold]missed[/]"}[result["met"]],
            )
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", style="dim", highlight=False)


def run(effort: Effort, progress: Progress) -> Report:
    """Compute every figure."""
    figures = [*dstack_paper.run(effort, progress), *dstack_beyond.run(effort, progress)]
    return FigureReport(
        "dstack",
        "figures of D-STACK, and spacetime on the same workloads; simulated",
        (),
        [_result(figure) for figure in figures],
        (
            "paper: [R] was remembered, not read again; expected: what follows from the paper's data",
            *dstack_paper.NOTES,
            *dstack_beyond.NOTES,
        ),
    )


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.3g} {unit}"


def _met(figure: Figure) -> bool | None:
    if figure.at_least is not None:
        return figure.computed >= figure.at_least
    if figure.expected is None or figure.loose:
        return None
    return abs(figure.computed - figure.expected) <= TOLERANCE * max(figure.expected, 1e-9)


def _target(figure: Figure) -> str:
    if figure.at_least is not None:
        return f">= {figure.at_least:g} {figure.unit}"
    return "" if _met(figure) is None else f"+-{TOLERANCE:.0%}"


def _result(figure: Figure) -> dict[str, Any]:
    result = asdict(figure)
    del result["loose"], result["at_least"]
    return {**result, "target": _target(figure), "met": _met(figure)}
