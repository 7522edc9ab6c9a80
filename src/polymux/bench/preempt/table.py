"""The picture of one model at one load: every configuration in a line."""

from __future__ import annotations

from rich.table import Table

from polymux.bench.preempt.cell import Cell
from polymux.bench.preempt.configurations import TRAIN_ALONE


def table(cell: Cell, alone: str, train_alone_per_s: float) -> Table:
    """Make the table of a cell.

    Parameters
    ----------
    cell : Cell
    alone : str
        The configuration to which p99 is compared.
    train_alone_per_s : float
        What training is compared to.
    """
    title = (
        f"{cell.model} at {cell.load:.0%} load: {cell.rate_per_s:.1f} requests/s of {cell.service_ms:.1f} ms"
    )
    made = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    made.add_column("configuration", no_wrap=True)
    for heading in ("p50 ms", "p99 ms", "to alone", "training kept", "wait p99 ms", "requests"):
        made.add_column(heading, justify="right", no_wrap=True)
    base = cell.found[alone].p99_ms
    for name, figures in cell.found.items():
        kept = figures.train_steps_per_s
        ratio = figures.p99_ms / base if figures.p99_ms is not None and base else None
        cells = (_text(figures.p50_ms), _text(figures.p99_ms), _text(ratio, "{:.2f} x"))
        training = "" if kept is None else f"{kept / train_alone_per_s:.0%}"
        if name in TRAIN_ALONE:
            training = f"{kept:.2f}/s"
        made.add_row(
            name, *cells, training, _text(figures.wait_p99_ms, "{:.3f}"), str(figures.requests or "")
        )
    return made


def _text(value: float | None, form: str = "{:.1f}") -> str:
    return "" if value is None else form.format(value)
