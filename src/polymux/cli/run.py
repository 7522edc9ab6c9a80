"""``polymux run``: run an unchanged program under a lease."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from polymux.cli.connection import add_socket_option
from polymux.client import Client
from polymux.client.client import percent_of
from polymux.client.held_command import HeldCommand, LeaseWishes
from polymux.client.lease import OUTER
from polymux.core.errors import InvalidRequest
from polymux.core.nbytes import parse_nbytes

_EPILOG = """\
The program waits for its turn, then runs. While somebody with the same or a higher priority needs the device (requests
for a served model, another job whose turn it is), the operating system stops it where it is, with its memory, or lets
it run on idle cores only. It need not know: no library, no changes. A program that gives way by itself is held up less
and can move between devices: see polymux.training and Client.lease.

  polymux up --detach
  polymux run -- python train.py --epochs 10
  polymux run --priority 1 --weight 2 -- ./solver input.dat

The exit code is the program's. Signals (Ctrl-C, Ctrl-Z, SIGTERM, ...) reach it.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="run a program under a lease",
        description="Run an unchanged program as a job: it uses a device while nobody with a claim to it does.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options] -- PROGRAM [ARGUMENT ...]",
    )
    parser.add_argument(
        "--priority",
        metavar="P",
        type=int,
        help="larger comes first; tasks come before jobs of the same priority (default: 0)",
    )
    parser.add_argument(
        "--weight",
        metavar="W",
        type=_weight,
        help="part of the device time relative to jobs of the same priority, 0.01 to 100 (default: 1)",
    )
    parser.add_argument(
        "--device", metavar="D[,D...]", help="where it may run (default: any of the host's cores)"
    )
    parser.add_argument(
        "--memory", metavar="SIZE", type=_nbytes, default=0, help="memory that it needs, such as 2GiB"
    )
    parser.add_argument("--name", metavar="NAME", help="shown to the operator (default: the program's name)")
    add_socket_option(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the program; returns its exit code."""
    words = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not words:
        raise InvalidRequest("name the program: polymux run [options] -- PROGRAM [ARGUMENT ...]")
    if OUTER in os.environ:
        _say(f"{words[0]} runs under the lease {os.environ[OUTER]} already")
        return subprocess.call(words)
    socket = None if options.socket is None else str(options.socket)
    name = options.name or Path(words[0]).name
    wishes = LeaseWishes(name, options.priority, options.weight, options.memory, options.device)
    return HeldCommand(words, lambda: Client(socket, name=name), wishes, _say).run()


def _say(text: str) -> None:
    print(f"polymux run: {text}", file=sys.stderr, flush=True)


def _weight(text: str) -> float:
    try:
        weight = float(text)
        percent_of(weight)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no weight; give 0.01 to 100") from error
    return weight


def _nbytes(text: str) -> int:
    try:
        return parse_nbytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
