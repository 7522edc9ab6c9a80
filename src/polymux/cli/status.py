"""``polymux status``: the server, its applications and their queues at this moment."""

from __future__ import annotations

import argparse
from typing import Any

from polymux.cli.connection import add_json_option, add_socket_option, ask, print_json
from polymux.cli.job_tables import jobs_memory_line, jobs_table, task_waits_line
from polymux.cli.tables import (
    devices_table,
    energy_line,
    queues_table,
    server_line,
    sessions_table,
    streams_table,
)
from polymux.cli.text import terminal
from polymux.cli.usage import applications_usage, devices_usage


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "status",
        help="show the server, its applications and their queues",
        description="Show the server, its devices, applications and queues at this moment;"
        " 'polymux top' shows them live.",
    )
    add_socket_option(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the status."""
    state: dict[str, Any] = ask(options, "status")
    if options.json:
        print_json(state)
        return 0
    console = terminal()
    console.print(server_line(state))
    if (energy := energy_line(state)) is not None:
        console.print(energy)
    for line in (task_waits_line(state), jobs_memory_line(state)):
        if line is not None:
            console.print(line)
    for made in (
        devices_table(state),
        devices_usage(state, width=console.width),
        streams_table(state),
        queues_table(state),
        jobs_table(state),
        applications_usage(state, width=console.width),
        sessions_table(state),
    ):
        if made is not None:
            console.print()
            console.print(made)
    return 0
