"""Parses the command line and calls the command's function."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from polymux.core.errors import PolymuxError

COMMANDS = {
    "up": "polymux.cli.up",
    "down": "polymux.cli.down",
    "status": "polymux.cli.status",
    "devices": "polymux.cli.devices",
    "top": "polymux.cli.top",
    "migrate": "polymux.cli.migrate",
    "kernels": "polymux.cli.kernels",
    "run": "polymux.cli.run",
    "serve": "polymux.cli.serve",
    "demo": "polymux.cli.demo",
    "bench": "polymux.cli.bench",
    "partition": "polymux.cli.partition",
    "profile": "polymux.cli.profile",
    "profile show": "polymux.cli.profile_show",
    "profile forget": "polymux.cli.profile_forget",
    "profile together": "polymux.cli.profile_together",
    "calibrate": "polymux.cli.calibrate",
    "replay": "polymux.cli.replay",
    "simulate": "polymux.cli.simulate",
    "coexec": "polymux.cli.coexec",
    "plan": "polymux.cli.plan",
}
"""Name of a command -> its module, which has ``add_parser(subparsers)``; the parser's default `run` does the work."""

NEEDS = {
    "serve": "polymux[serve]",
    "profile": "polymux[profile]",
    "partition": "polymux[profile]",
}
"""Commands that work only with an extra installed."""

_DESCRIPTION = "Share this machine's accelerators among applications that need not know them."
_EPILOG = """\
First steps:
  polymux up                     start the server (Ctrl-C ends it)
  polymux devices                what it found, and why something is missing
  python my_application.py       polymux.connect() finds the server
  polymux top                    watch who runs where
  polymux run -- python train.py use a device whenever nobody else needs it
  polymux demo                   real models and a numerical application on all devices
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process by default.

    Returns
    -------
    int
        Exit code: 0 done, 1 failed, 2 wrong arguments (raised as SystemExit by argparse), 130 interrupted.
    """
    given = _joined(list(sys.argv[1:] if arguments is None else arguments))
    options = _parser(given).parse_args(given)
    try:
        return int(options.run(options))
    except (PolymuxError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of our output has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"polymux {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _joined(given: list[str]) -> list[str]:
    """Make one word of the two that name a command."""
    joined = " ".join(given[:2])
    return [joined, *given[2:]] if len(given) > 1 and joined in COMMANDS else given


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="polymux",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"polymux {version('polymux')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((word for word in given if word in COMMANDS), None)
    for name in COMMANDS if wanted is None else [wanted]:
        _add_command(subparsers, name)
    return parser


def _add_command(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    """Add one command's parser; one whose packages are missing says so when it is called."""
    try:
        importlib.import_module(COMMANDS[name]).add_parser(subparsers)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("polymux"):
            raise
        missing = error.name
        extra = NEEDS.get(name, "polymux[all]")
        help_text = f"(needs the package {missing}: pip install '{extra}')"
        parser = subparsers.add_parser(name, help=help_text, add_help=False, prefix_chars="\0")
        parser.add_argument("rest", nargs="*")
        parser.set_defaults(run=lambda _: _complain(name, str(missing), extra))


def _complain(name: str, missing: str, extra: str) -> int:
    print(f"polymux {name}: needs the package {missing}; pip install '{extra}'", file=sys.stderr)
    return 1
