"""``polymux bench``: measure the runtime on this machine, each figure against a baseline of the same run."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import replace
from typing import NoReturn

from rich.console import Console

from polymux import bench
from polymux.apps.registry import APPLICATIONS
from polymux.bench.effort import FULL, MIB, QUICK, Effort
from polymux.bench.preempt.configurations import MODELS as SERVED
from polymux.bench.report import Report
from polymux.cli.text import terminal
from polymux.core.errors import PolymuxError
from polymux.core.nbytes import parse_nbytes

_EXAMPLE = """\
  issue       CPU cycles of one task issue, from Python and from C
  roundtrip   issue and wait for an empty task, awake and after both sides have slept
  transfer    from the application's memory into a kernel's hands, 1 MiB to 1 GiB
  throughput  empty tasks in a second; issue cost and memory after a million tasks
  migrate     how long a queue stands still when it moves with 1 MiB to 1 GiB, against the bare copy
  training    a convolutional network with a helper accelerator: 100,000 migrations (some minutes)
  apps        applications through Polymux and without it, 4 MiB to 1 GiB; choose with --app and --size
  elastic     applications of two priorities on two devices; also simulated
  simulate    simulated requests in a second of wall time, under every policy for requests
  dstack      the figures of D-STACK, and spacetime on the same workloads; all simulated
  policies    real models under deadlines: every policy at 0.5 to 1.2 of the capacity, and the simulator's prediction
  reuse       models that take JPEG files: input stages beside the device and shared, against jobs that take turns
  decide      what deciding about requests costs with 10, 100 and 1,000 models, every policy
  cluster     10,000 models on 1,000 simulated devices: placed, simulated and planned (some minutes)
  preempt     inference next to PyTorch training on the same cores, every way to share them (25 minutes);
              in parts: --model, --load
  switchflow  training in the background of requests, and two trainings on one device: three policies; simulated
  coexec      matrix products and convolutions on two units at once, against each alone and the ideal
  all         all of them

A benchmark starts a server of its own; one that is running is left alone, but takes cores away.
Keep the machine idle otherwise.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="measure the runtime on this machine",
        description="Measure the runtime on this machine; every figure has a baseline from the same run.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", choices=[*bench.BENCHMARKS, "all"], help="what to measure")
    parser.add_argument("--json", action="store_true", help="print only the results, as JSON")
    parser.add_argument(
        "--quick", action="store_true", help="repeat little: does it run? The figures are rough"
    )
    parser.add_argument(
        "--app",
        action="append",
        default=[],
        choices=list(APPLICATIONS),
        help="apps: only this application; may be repeated",
    )
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        type=_size,
        metavar="NBYTES",
        help="apps: only this size, such as 16MiB; may be repeated",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        choices=list(SERVED),
        help="preempt: serve only this model; may be repeated",
    )
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        type=_load,
        metavar="L",
        help="preempt: only at this load, such as 0.15; may be repeated",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the benchmarks and print what they found."""
    names = list(bench.BENCHMARKS) if args.name == "all" else [args.name]
    effort = QUICK if args.quick else FULL
    effort = replace(
        effort,
        applications=tuple(args.app),
        sizes_nbytes=tuple(sorted(args.size)),
        served=tuple(args.model),
        loads=tuple(sorted(args.load)),
    )
    for options, given, name in (
        ("--app and --size", args.app or args.size, "apps"),
        ("--model and --load", args.model or args.load, "preempt"),
    ):
        if given and args.name != name:
            print(f"polymux bench: {options} choose for {name}, not for {args.name}", file=sys.stderr)
            return 2
    console, progress = terminal(), Console(stderr=True)
    results = {}
    signal.signal(signal.SIGTERM, _end)
    try:
        for name in names:
            report = _measured(name, effort, progress)
            results[name] = report.results
            if not args.json:
                report.print(console)
                console.print()
    except (PolymuxError, OSError) as error:
        print(f"polymux bench: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(results if args.name == "all" else results[args.name]))
    return 0


def _end(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    """End by way of all ``with`` blocks, which end the servers that were started."""
    sys.exit(128 + number)


def _size(text: str) -> int:
    try:
        nbytes = parse_nbytes(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}") from None
    if not MIB <= nbytes <= 64 << 30:
        raise argparse.ArgumentTypeError(f"{text!r}: give 1MiB to 64GiB")
    return nbytes


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0.01 <= load <= 0.9:
        raise argparse.ArgumentTypeError(f"{text!r}: give 0.01 to 0.9")
    return load


def _measured(name: str, effort: Effort, console: Console) -> Report:
    with console.status(f"{name}: starting a server") as status:
        return bench.run(name, effort, lambda what: status.update(f"{name}: {what}"))
