"""``polymux demo``: real models and a numerical application on all devices of this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from polymux.demo.options import DemoOptions

_LEAST_SECONDS = 5.0
_DESCRIPTION = """\
Start a server and an HTTP front end with four real models (two of an OCR system, one that names file types, one that
hears speech), send them photographs, files and recorded speech from several clients, run a numerical application
beside them, and move it between the devices while it runs. Every answer is compared with what the model gives when run
directly, and the numerical result with NumPy. Nothing is downloaded.
"""
_EPILOG = """\
Leaves in the folder of --out:
  demo.html        what happened, on one page
  timeline.png     who ran where and when
  trace.json       every task, for Perfetto (ui.perfetto.dev)

The exit code is 1 when a request was lost or a result was wrong.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    defaults = DemoOptions()
    parser = subparsers.add_parser(
        "demo",
        help="run real models and a numerical application on all devices (about a minute)",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=_seconds,
        default=defaults.seconds,
        help="length of the load (default: %(default)g)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=defaults.folder,
        help="where trace, picture and page go (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        action="append",
        default=[],
        help="a device to use, as for 'polymux up'; may be repeated (default: all)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        from polymux.demo.run import run  # only now: it loads the libraries that draw and infer
    except ModuleNotFoundError as error:
        print(f"polymux demo: needs the package {error.name}; pip install 'polymux[demo]'", file=sys.stderr)
        return 1
    options = DemoOptions(arguments.seconds, arguments.out, tuple(arguments.device))
    return run(options, Console(highlight=False, width=None if sys.stdout.isatty() else 120))


def _seconds(text: str) -> float:
    value = float(text)
    if not _LEAST_SECONDS <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} s; give {_LEAST_SECONDS:g} to 3600")
    return value
