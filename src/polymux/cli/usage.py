"""Who took how much of which device: tables of the accounts, as totals and as rates between two moments."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from polymux.cli.text import duration, percent, short_count, shorten, size, table

State = dict[str, Any]
Sums = dict[str, int]

WIDE = 104
"""Characters of a line from which on copies are shown by direction."""
LONGEST_NAME = 24
_COPIES = {
    "copied in": "copied_in_nbytes",
    "copied out": "copied_out_nbytes",
    "between": "copied_between_nbytes",
}
_NOTHING: Sums = dict.fromkeys(
    ("tasks", "failed", "busy_ns", "waiting_ns", "migrations", *_COPIES.values()), 0
)


def applications_usage(state: State, before: State | None = None, width: int = WIDE) -> Table:
    """List what the applications took, by name, the busiest first.

    Parameters
    ----------
    state, before : dict
        What the server tells now, and what it told before. With both there are rates beside the totals, and what
        is not connected and did nothing meanwhile is one row.
    width : int
        Characters of a line.
    """
    made = _UsageTable("Applications", "application", state, before, width)
    now, then = _sums(state, "application"), _sums(before, "application")
    shown = set(now)
    if before is not None:
        connected = {item["account"] for item in state["applications"]}
        shown = {name for name in now if name in connected or now[name] != then.get(name, _NOTHING)}
    for name in sorted(shown, key=lambda name: (-_grown(now[name], then.get(name), "busy_ns"), name)):
        made.add(name, now[name], then.get(name))
    ended = [now[name] for name in now if name not in shown]
    if ended:
        sums = {key: sum(sums[key] for sums in ended) for key in _NOTHING}
        made.add(f"({len(ended)} ended)", sums, sums)
    return made.finished()


def devices_usage(state: State, before: State | None = None, width: int = WIDE) -> Table:
    """List what the devices did, and their memory; the parameters are those of `applications_usage`."""
    made = _UsageTable("Devices", "device", state, before, width, "memory")
    now, then = _sums(state, "device"), _sums(before, "device")
    for device in state["devices"]:
        name = device["id"]
        used, capacity = "shared", ""
        if device["lost"] is not None:
            used = "[red]lost[/red]"
        elif device["memory"] == "own":
            used, capacity = size(device["used_nbytes"]), f"of {size(device['memory_nbytes'])}"
        made.add(name, now.get(name, _NOTHING), then.get(name), used, capacity)
    return made.finished()


class _UsageTable:
    """A table with a row of totals for each name, and a row of rates above it when there are two moments."""

    def __init__(
        self, title: str, column: str, state: State, before: State | None, width: int, *more: str
    ) -> None:
        self._elapsed_ns = 0
        if before is not None:
            self._elapsed_ns = max(1, state["server"]["now_ns"] - before["server"]["now_ns"])
        self._rates = before is not None
        self._streams = {device["id"]: len(device["streams"]) for device in state["devices"]}
        self._wide = width >= WIDE
        copies = tuple(_COPIES) if self._wide else ("copied",)
        numbers = ("busy", "tasks", "failed", "wait/task", *copies, "moves", *more)
        columns = (column, "", *numbers) if self._rates else (column, *numbers)
        self._table = table(title, columns, numbers)
        shorten(self._table, 0, LONGEST_NAME if self._wide else 16)
        if self._wide:
            self._table.padding = (0, 1)
        self._table.columns[1].no_wrap = True

    def add(self, name: str, now: Sums, then: Sums | None = None, *more: str) -> None:
        """Add what one application or device took."""
        if not self._rates:
            whole = " ".join(text for text in more if text)
            self._table.add_row(escape(name), *self._totals(now), *([whole] if more else []))
            return
        grown = {key: _grown(now, then, key) for key in _NOTHING}
        streams = self._streams.get(name) or sum(self._streams.values())
        grown["busy_ns"] = min(grown["busy_ns"], streams * self._elapsed_ns)  # a task counts when it ends
        self._table.add_row(escape(name), "per s", *self._per_second(grown), *more[:1])
        self._table.add_row("", "total", *self._totals(now), *more[1:], style="dim")

    def finished(self) -> Table:
        """Return the table."""
        if not self._table.rows:
            self._table.add_row("[dim]none[/dim]")
        return self._table

    def _totals(self, sums: Sums) -> list[str]:
        return [
            duration(sums["busy_ns"]),
            short_count(sums["tasks"]),
            short_count(sums["failed"]),
            _wait(sums),
            *(size(nbytes) for nbytes in self._copies(sums)),
            short_count(sums["migrations"]),
        ]

    def _per_second(self, grown: Sums) -> list[str]:
        seconds = self._elapsed_ns / 1e9
        return [
            percent(grown["busy_ns"], self._elapsed_ns),
            _rate(grown["tasks"] / seconds),
            _rate(grown["failed"] / seconds),
            _wait(grown),
            *(size(nbytes / seconds) for nbytes in self._copies(grown)),
            _rate(grown["migrations"] / seconds),
        ]

    def _copies(self, sums: Sums) -> list[int]:
        found = [sums[key] for key in _COPIES.values()]
        return found if self._wide else [sum(found)]


def _sums(state: State | None, key: str) -> dict[str, Sums]:
    """Add the accounts of a state up by application or device."""
    found: dict[str, Sums] = {}
    for account in [] if state is None else state["accounts"]:
        sums = found.setdefault(account[key], dict(_NOTHING))
        for field in _NOTHING:
            sums[field] += account[field]
    return found


def _grown(now: Sums, then: Sums | None, key: str) -> int:
    return max(0, now[key] - (then or _NOTHING)[key])


def _wait(sums: Sums) -> str:
    return duration(sums["waiting_ns"] / sums["tasks"]) if sums["tasks"] else "-"


def _rate(per_second: float) -> str:
    return f"{per_second:.1f}" if 0.05 <= per_second < 9.95 else short_count(per_second)
