"""What a person sees while the demo runs: progress, requests by model, the application, the devices."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from polymux.demo.message import Steps
from polymux.demo.models import MODELS
from polymux.demo.operator import Operator
from polymux.demo.tally import Tally

__all__ = ["Screen"]

_REDRAW_S = 0.25
_LINE_S = 5.0
_BAR_WIDTH = 30


class Screen:
    """Shows how the demo goes: a live view on a terminal, a line now and then elsewhere.

    Parameters
    ----------
    console : Console
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._status = console.status("")
        self._drawn_at = 0.0
        self._line_at = 0.0
        self._busy = _Busy()

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Say what is done in the block, and after it how long that took."""
        start = time.monotonic()
        self._status.update(escape(text))
        with self._status:
            yield
        self.say(f"{text} ({time.monotonic() - start:.1f} s)")

    def say(self, text: str) -> None:
        """Say that something is done."""
        self.console.print(f"[green]✔[/] {escape(text)}")

    def note(self, text: str) -> None:
        """Say how far the present step is."""
        self._status.update(escape(text))

    def show(
        self, done_s: float, total_s: float, tally: Tally, steps: Steps | None, operator: Operator
    ) -> None:
        """Show how the load goes; redrawn a few times a second at most."""
        now = time.monotonic()
        if not self.console.is_terminal:
            if now - self._line_at >= _LINE_S:
                self._line_at = now
                self.console.print(f"  {done_s:3.0f} of {total_s:.0f} s: {_in_words(tally, steps, operator)}")
            return
        if now - self._drawn_at < _REDRAW_S:
            return
        self._drawn_at = now
        self._live.update(
            Group(
                _progress(done_s, total_s),
                Text(),
                _models_table(tally, done_s),
                Text(),
                _application_line(steps, operator),
                Text(),
                self._busy.table(operator.status),
                Text(),
                _notes(tally),
            ),
            refresh=True,
        )

    def __enter__(self) -> Self:
        self._line_at = time.monotonic()
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class _Busy:
    """How busy each stream is, from two looks at its counters."""

    def __init__(self) -> None:
        self._before: tuple[int, dict[str, int]] | None = None
        self._shares: dict[str, float] = {}

    def table(self, status: Mapping[str, Any]) -> Table:
        now_ns = status["server"]["now_ns"]
        streams = {stream["id"]: stream for device in status["devices"] for stream in device["streams"]}
        busy = {name: stream["busy_ns"] for name, stream in streams.items()}
        if self._before is not None and now_ns - self._before[0] > 0:
            elapsed = now_ns - self._before[0]
            self._shares = {
                name: min(1.0, max(0.0, (busy[name] - self._before[1][name]) / elapsed)) for name in busy
            }
        if self._before is None or now_ns != self._before[0]:
            self._before = (now_ns, busy)
        queues = {queue["id"]: queue["name"] for queue in status["queues"]}
        table = Table.grid(padding=(0, 2))
        for name, stream in streams.items():
            share = self._shares.get(name, 0.0)
            bound = sorted({queues[queue] for queue in stream["queues"] if queue in queues})
            table.add_row(
                f"stream {name}",
                ProgressBar(1.0, share, _BAR_WIDTH),
                f"{share:4.0%} busy",
                Text(", ".join(bound), "dim"),
            )
        return table


def _progress(done_s: float, total_s: float) -> Table:
    table = Table.grid(padding=(0, 2))
    bar = ProgressBar(total_s, min(done_s, total_s), 60)
    table.add_row("[bold]under load[/]", bar, f"{done_s:.0f} of {total_s:.0f} s")
    return table


def _models_table(tally: Tally, elapsed_s: float) -> Table:
    table = Table(box=None, pad_edge=False, title="Requests over HTTP", title_justify="left")
    for column in ("model", "what it does"):
        table.add_column(column)
    for column in ("answered", "a second", "p50 ms", "p99 ms", "wrong", "lost"):
        table.add_column(column, justify="right")
    for name, model in tally.models.items():
        bad = "red" if model.wrong or model.failed else "green"
        table.add_row(
            name,
            f"[dim]{MODELS[name].does}[/]",
            f"{model.answered:,}",
            f"{tally.throughput(name, elapsed_s):.1f}",
            f"{model.percentile_ms(50):.1f}",
            f"{model.percentile_ms(99):.1f}",
            f"[{bad}]{model.wrong}[/]",
            f"[{bad}]{model.failed}[/]",
        )
    return table


def _application_line(steps: Steps | None, operator: Operator) -> Text:
    place, migrations = operator.place(), operator.migrations
    done = sum(not migration.problem for migration in migrations)
    line = Text("heat, the numerical application: ", "bold")
    line.append(f"{steps.steps if steps else 0:,} steps", "default not bold")
    line.append(" on ", "default not bold")
    line.append(place.stream or "its way to another device", "bold magenta")
    line.append(f", migrated {done} times", "default not bold")
    if steps and steps.note:
        line.append(f", {steps.note}", "default not bold")
    return line


def _notes(tally: Tally) -> Text:
    return Text("\n").join(
        Text(f"{application:>8}: {note}", "dim", no_wrap=True, overflow="ellipsis")
        for application, note in tally.notes.items()
    )


def _in_words(tally: Tally, steps: Steps | None, operator: Operator) -> str:
    answered = sum(model.answered for model in tally.models.values())
    bad = sum(model.wrong + model.failed for model in tally.models.values())
    done = sum(not migration.problem for migration in operator.migrations)
    return (
        f"{answered:,} requests answered, {bad} wrong or lost; heat: {steps.steps if steps else 0:,} steps,"
        f" on {escape(operator.place().stream or 'no stream')}, migrated {done} times"
    )
