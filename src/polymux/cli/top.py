"""``polymux top``: who runs where, live."""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live

from polymux.cli.connection import AdminConnection, add_socket_option, socket_path
from polymux.cli.job_tables import jobs_table
from polymux.cli.tables import (
    State,
    queues_table,
    server_line,
    streams_table,
)
from polymux.cli.text import terminal
from polymux.cli.usage import applications_usage, devices_usage


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "top",
        help="show devices, streams, queues, jobs and applications live",
        description="Show what devices, streams, queues, jobs and applications do, per second and since the server's"
        " start: device time, tasks, failed tasks, how long a task waits for its start, bytes copied, queues that"
        " moved to another device. A terminal of 104 columns shows copies by direction. Ctrl-C ends it.",
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=_interval,
        default=1.0,
        help="seconds between two looks (default: %(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="print one frame, measured over one interval")
    add_socket_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show frames until Ctrl-C, or one."""
    console = terminal()
    with AdminConnection(socket_path(options)) as connection:
        before: State = connection.request_json("status")
        if options.once:
            time.sleep(options.interval)
            console.print(frame(connection.request_json("status"), before, console.width))
            return 0
        with Live(
            frame(before, None, console.width),
            console=console,
            screen=console.is_terminal,
            auto_refresh=False,
        ) as live:
            try:
                _follow(connection, before, options.interval, live)
            except KeyboardInterrupt:
                return 0
    return 0


def frame(state: State, before: State | None, width: int) -> RenderableType:
    """Make one frame for a terminal of so many columns."""
    jobs = jobs_table(state, before)
    return Group(
        server_line(state),
        "",
        devices_usage(state, before, width),
        "",
        streams_table(state, before),
        "",
        queues_table(state, before),
        "",
        *(() if jobs is None else (jobs, "")),
        applications_usage(state, before, width),
    )


def _follow(connection: AdminConnection, before: State, interval_s: float, live: Live) -> None:
    while True:
        time.sleep(interval_s)
        state: dict[str, Any] = connection.request_json("status")
        live.update(frame(state, before, live.console.width), refresh=True)
        before = state


def _interval(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is no interval; give 0.05 to 3600 seconds")
    return value
