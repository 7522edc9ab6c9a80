"""``polymux plan``: how many devices of which kind a workload needs, and which model goes where."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from polymux.cli.profile_store import add_store_option, store_path
from polymux.cli.progress_lines import ProgressLines
from polymux.cli.text import terminal
from polymux.core.errors import InvalidRequest
from polymux.planning.plan import Plan, make_plan
from polymux.planning.plan_chart import draw_plan
from polymux.planning.plan_report import plan_results, print_plan
from polymux.planning.plan_search import PlanOptions
from polymux.planning.workload import Workload, read_workload

_EXAMPLE = """\
  polymux plan examples/workloads/fleet.toml
  polymux plan WORKLOAD.toml --attainment 0.999 --load 1.5
  polymux plan WORKLOAD.toml --limit v100=8 --picture placement.png

The numbers of devices in the workload file do not count here, only their kinds (and their `cost`). Exit code 0: the
plan meets all SLOs; 1: none was found that does. docs/plan-capacity.md tells more.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "plan",
        help="how many devices a workload needs, and which model goes where",
        description="Plan capacity: pack the models of a workload on as few (or as cheap) devices as meet their rates"
        " and SLOs, check that by simulation, repair what the check finds late, and say what is the bottleneck.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workload", metavar="WORKLOAD.toml", type=Path, help="the workload file")
    parser.add_argument(
        "--policy",
        metavar="NAME[=OPTION]",
        help="that schedules each device; by default the file's first one, or spacetime",
    )
    parser.add_argument(
        "--attainment", type=float, default=0.99, metavar="PART",
        help="part of each model's requests to be on time; 0.99 by default",
    )  # fmt: skip
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="KIND=N",
        help="there are only N devices of a kind; may be repeated",
    )
    parser.add_argument(
        "--load", type=float, default=1.0, metavar="FACTOR", help="times the requests of the file"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of all random numbers, instead of the file's")
    parser.add_argument(
        "--duration", type=float, metavar="S", help="simulated seconds, instead of the file's"
    )
    parser.add_argument(
        "--no-check", action="store_true", help="only pack, do not simulate: fast, and a guess"
    )
    parser.add_argument("--json", action="store_true", help="print only the plan, as JSON")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE.png", help="draw who is on which part of which device"
    )
    add_store_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Plan, and print or draw what was asked for."""
    workload = _adapted(read_workload(options.workload, store_path(options)), options)
    policy = options.policy or (*workload.policies, PlanOptions().policy)[0]
    wanted = PlanOptions(policy, options.attainment, _limits(options.limit), check=not options.no_check)
    plan = _planned(workload, wanted)
    if options.picture is not None:
        draw_plan(options.picture, plan)
    if options.json:
        print(json.dumps(plan_results(plan)))
    else:
        print_plan(terminal(), plan)
        if options.picture is not None:
            print(f"\nwrote {options.picture}")
    return 0 if plan.is_met else 1


def _planned(workload: Workload, wanted: PlanOptions) -> Plan:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        console = Console(stderr=True)
        bar = stack.enter_context(
            Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())
        )
        lines = None if sys.stderr.isatty() else ProgressLines()
        task = bar.add_task("placing models", total=None)

        def told(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)
            if lines is not None:
                lines.tell(what, done, total)

        return make_plan(workload, wanted, told)


def _adapted(workload: Workload, options: argparse.Namespace) -> Workload:
    """Put what the command line says in the place of what the file says."""
    if options.seed is not None:
        if options.seed < 0:
            raise InvalidRequest(f"--seed {options.seed}: give 0 or more")
        workload = replace(workload, seed=options.seed)
    if options.duration is not None:
        shortest = workload.warmup_ns / 1e9
        if not shortest < options.duration <= 1e6:
            raise InvalidRequest(
                f"--duration {options.duration}: give more than {shortest:g} s, at most 1000000"
            )
        workload = replace(workload, duration_ns=round(options.duration * 1e9))
    if not 0 < options.load <= 1e6:
        raise InvalidRequest(f"--load {options.load}: give more than 0, and at most 1000000")
    return workload if options.load == 1.0 else workload.scaled(options.load)


def _limits(texts: list[str]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for text in texts:
        kind, _, count = text.partition("=")
        if not kind or not count.isdecimal():
            raise InvalidRequest(f"--limit {text}: give KIND=N with a whole number, such as v100=8")
        limits[kind] = int(count)
    return limits
