"""What a benchmark found: figures with their baselines and targets, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

Progress = Callable[[str], None]
"""Told in a few words what is being measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Parameters
    ----------
    metric : str
        What was measured.
    value : float
    unit : str
    baseline : float, optional
        The same of the baseline, in the same unit.
    against : str
        What the baseline is, in a word.
    target : str
        What is aimed at, in words.
    met : bool, optional
        Whether it was reached; None: there is no target.
    """

    metric: str
    value: float
    unit: str
    baseline: float | None = None
    against: str = ""
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one benchmark.

    Parameters
    ----------
    name : str
    title : str
        What is measured, in one sentence.
    rows : tuple of Row
    results : dict or list
        For machines; the keys are described in docs/benchmarks.md.
    notes : tuple of str
        How it was measured: pinning, repetitions, definitions.
    tables : tuple of rich.table.Table
        More figures, side by side.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    results: dict[str, Any] | list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()

    def print(self, console: Console) -> None:
        """Print the table and the notes."""
        console.print(f"[bold]{self.name}: {self.title}[/]", highlight=False)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("measured", no_wrap=True)
        for heading in ("value", "baseline", "ratio"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("target", no_wrap=True)
        table.add_column("", no_wrap=True)
        for row in self.rows:
            baseline = "" if row.baseline is None else f"{row.against} {_number(row.baseline)}"
            ratio = f"{row.value / row.baseline:.2f}" if row.baseline else ""
            verdict = {None: "", True: "[green]met[/]", False: "[red bold]missed[/]"}[row.met]
            table.add_row(
                row.metric, f"{_number(row.value)} {row.unit}", baseline, ratio, row.target, verdict
            )
        console.print(table)
        for more in self.tables:
            console.print()
            console.print(more)
        for note in self.notes:
            console.print(f"  {note}", style="dim", highlight=False)


def _number(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g} M"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
