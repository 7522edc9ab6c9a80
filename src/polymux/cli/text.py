"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def size(nbytes: float) -> str:
    """Write a number of bytes, in at most 8 characters."""
    value = float(nbytes)
    if round(value) < 1024:
        return f"{round(value)} B"
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 99.95:
            return f"{value:.1f} {unit}"
        if round(value) < 1024:
            return f"{value:.0f} {unit}"
    value /= 1024
    return f"{value:.1f} TiB"


def duration(ns: float) -> str:
    """Write a time: whole units from ten seconds on, two units from an hour on."""
    if ns < 999.5:
        return f"{round(ns)} ns"
    for limit, factor, unit in ((999.95e3, 1e3, "us"), (999.95e6, 1e6, "ms"), (9.95e9, 1e9, "s")):
        if ns < limit:
            return f"{ns / factor:.1f} {unit}"
    seconds = round(ns / 1e9)
    if seconds < 120:
        return f"{seconds} s"
    hours, minutes = divmod(seconds // 60, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def count(number: int) -> str:
    """Write a large number with separators."""
    return f"{number:,}"


def short_count(number: float) -> str:
    """Write a number in at most 7 characters: 1,234 or 1.2 M."""
    if round(number) < 100_000:
        return f"{round(number):,}"
    for limit, factor, unit in ((999.5e3, 1e3, "k"), (999.5e6, 1e6, "M"), (999.5e9, 1e9, "G")):
        if number < limit:
            value = number / factor
            return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.1f} {unit}"
    return f"{number / 1e12:.1f} T"


def percent(part: float, whole: float) -> str:
    """Write a share; what rounds to nothing is 0%, whatever its sign."""
    return f"{round(100 * part / whole)}%" if whole > 0 else "-"


def table(title: str, columns: Sequence[str], right: Sequence[str] = ()) -> Table:
    """Begin a table; the first column is never broken, the columns named in `right` hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        numbers = column in right
        whole = numbers or column == columns[0]
        made.add_column(column, justify="right" if numbers else "left", no_wrap=whole, overflow="fold")
    return made


def shorten(made: Table, column: int, longest: int) -> None:
    """Put a table's columns close together, for 80 columns of a terminal, and cut the texts of one of them."""
    made.padding = (0, 1, 0, 0)
    made.columns[column].no_wrap, made.columns[column].overflow = True, "ellipsis"
    made.columns[column].max_width = longest


def terminal() -> Console:
    """Make a console as wide as the terminal; wide enough for every table where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)
