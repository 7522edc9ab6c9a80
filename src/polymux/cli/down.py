"""``polymux down``: stop the server."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys

from polymux.cli.connection import AdminConnection, add_socket_option, socket_path

WAIT_S = 15.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "down",
        help="stop the server",
        description="Stop the server. Tasks that run end; what waits is dropped, and its clients get an error.",
    )
    add_socket_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ask the server to end and wait until its process is gone."""
    path = socket_path(options)
    with AdminConnection(path) as connection:
        pid = int(connection.request("down")["pid"])
    if not _wait(pid):
        print(f"polymux down: the server (process {pid}) still ends a task", file=sys.stderr)
        return 1
    print(f"the server at {path} (process {pid}) is down")
    return 0


def _wait(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            return bool(select.select([descriptor], [], [], WAIT_S)[0])
        finally:
            os.close(descriptor)
    return True
