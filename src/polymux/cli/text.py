"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def size(nbytes: int) -> str:
    """Write a number of bytes."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(ns: int) -> str:
    """Write a time."""
    if ns < 10_000:
        return f"{ns} ns"
    for limit, factor, unit in ((10_000_000, 1e3, "us"), (10_000_000_000, 1e6, "ms")):
        if ns < limit:
            return f"{ns / factor:.1f} {unit}"
    seconds = ns // 1_000_000_000
    if seconds < 120:
        return f"{seconds} s"
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def count(number: int) -> str:
    """Write a large number with separators."""
    return f"{number:,}"


def percent(part: float, whole: float) -> str:
    """Write a share."""
    return f"{100 * part / whole:.0f}%" if whole > 0 else "-"


def table(title: str, columns: Sequence[str], right: Sequence[str] = ()) -> Table:
    """Begin a table; the first column is never broken, the columns named in `right` hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        numbers = column in right
        whole = numbers or column == columns[0]
        made.add_column(column, justify="right" if numbers else "left", no_wrap=whole, overflow="fold")
    return made


def terminal() -> Console:
    """Make a console as wide as the terminal; wide enough for every table where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)
