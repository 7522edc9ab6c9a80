"""The table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from polymux.demo.models import MODELS
from polymux.demo.outcome import Outcome

__all__ = ["mebibytes", "print_summary"]

_MARKS = {True: "[green]✔[/]", False: "[red]✘[/]", None: "·"}


def print_summary(console: Console, outcome: Outcome, files: Sequence[tuple[Path, str]]) -> None:
    """Print what a run came to, and the files that it left (each with what it is)."""
    console.print()
    console.print(_models_table(outcome))
    console.print()
    console.print(_application_table(outcome))
    console.print()
    console.print(_findings_table(outcome))
    console.print()
    style = "bold red" if outcome.problems else "bold green"
    console.print(f"[{style}]{escape(outcome.verdict)}[/]")
    for problem in outcome.problems[1:]:
        console.print(f"[red]  {escape(problem)}[/]")
    console.print()
    table = Table.grid(padding=(0, 2))
    for path, what in files:
        table.add_row(f"[cyan]{escape(str(path))}[/]", what)
    console.print(table)


def mebibytes(nbytes: int) -> str:
    """Return bytes in MiB for people."""
    return f"{nbytes / 2**20:,.1f} MiB"


def _models_table(outcome: Outcome) -> Table:
    table = _table(f"Requests over HTTP in {outcome.load_s:.0f} s")
    for column in ("model", "what it does"):
        table.add_column(column)
    for column in ("sent", "answered", "right", "p50 ms", "p99 ms", "a second"):
        table.add_column(column, justify="right")
    for name, model in outcome.tally.models.items():
        style = "" if model.good else "red"
        table.add_row(
            name,
            f"[dim]{MODELS[name].does}[/]",
            f"{model.sent:,}",
            f"{model.answered:,}",
            f"{model.answered - model.wrong:,}",
            f"{model.percentile_ms(50):.1f}",
            f"{model.percentile_ms(99):.1f}",
            f"{outcome.tally.throughput(name, outcome.load_s):.1f}",
            style=style,
        )
    table.add_section()
    total = outcome.answered / outcome.load_s
    table.add_row(
        "all",
        "",
        f"{outcome.sent:,}",
        f"{outcome.answered:,}",
        f"{outcome.right:,}",
        "",
        "",
        f"{total:.1f}",
        style="bold",
    )
    return table


def _application_table(outcome: Outcome) -> Table:
    table = _table("The numerical application and its migrations")
    table.add_column("", style="dim")
    table.add_column("")
    table.show_header = False
    table.add_row("time steps", f"{outcome.steps:,}, {outcome.steps / outcome.load_s:,.0f} a second")
    table.add_row("longest batch of steps", f"{outcome.longest_batch_ms:.1f} ms, migrations included")
    if len(outcome.devices) > 1:
        times = [(m.done_ns - m.asked_ns) / 1e6 for m in outcome.migrations if not m.problem]
        took = f", each bound anew within {max(times):.1f} ms" if times else ""
        table.add_row("migrations", f"{outcome.moves} between {' and '.join(outcome.devices)}{took}")
    else:
        only = " and ".join(outcome.devices) or "none"
        table.add_row("migrations", f"none: {only} is the only device here that has its kernel")
    table.add_row("bytes moved", f"{mebibytes(outcome.copied_nbytes)} into and out of devices' memories")
    return table


def _findings_table(outcome: Outcome) -> Table:
    table = _table("Results")
    table.show_header = False
    for finding in outcome.findings:
        table.add_row(_MARKS[finding.good], escape(finding.what), f"[bold]{escape(finding.result)}[/]")
    return table


def _table(title: str) -> Table:
    return Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
