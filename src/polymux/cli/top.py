"""``polymux top``: who runs where, live."""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live

from polymux.cli.connection import AdminConnection, add_socket_option, socket_path
from polymux.cli.tables import (
    State,
    applications_table,
    devices_table,
    queues_table,
    server_line,
    streams_table,
)
from polymux.cli.text import terminal


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "top",
        help="show devices, streams, queues and applications live",
        description="Show devices, streams, queues, applications, memory and tasks per second; Ctrl-C ends it.",
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
            console.print(frame(connection.request_json("status"), before))
            return 0
        with Live(
            frame(before, None), console=console, screen=console.is_terminal, auto_refresh=False
        ) as live:
            try:
                _follow(connection, before, options.interval, live)
            except KeyboardInterrupt:
                return 0
    return 0


def frame(state: State, before: State | None) -> RenderableType:
    """Make one frame."""
    return Group(
        server_line(state),
        "",
        devices_table(state),
        "",
        streams_table(state, before),
        "",
        queues_table(state, before),
        "",
        applications_table(state),
    )


def _follow(connection: AdminConnection, before: State, interval_s: float, live: Live) -> None:
    while True:
        time.sleep(interval_s)
        state: dict[str, Any] = connection.request_json("status")
        live.update(frame(state, before), refresh=True)
        before = state


def _interval(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is no interval; give 0.05 to 3600 seconds")
    return value
