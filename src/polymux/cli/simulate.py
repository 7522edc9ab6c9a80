"""``polymux simulate``: what policies would make of a workload, in virtual time."""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from polymux.cli.profile_store import add_store_option, store_path
from polymux.cli.progress_lines import ProgressLines
from polymux.cli.text import terminal
from polymux.core.errors import InvalidRequest
from polymux.core.serving.decision import ServingDecision
from polymux.core.serving.event import ServingEvent
from polymux.planning import gantt, perfetto
from polymux.planning.report import print_report, results
from polymux.planning.run import PolicyRun, check_stalled, run_policy
from polymux.planning.workload import DEFAULT_POLICIES, Workload, read_workload
from polymux.policy.serving import registry
from polymux.sched.recording import REQUESTS, Step, write_step
from polymux.sim.serving.simulation import Record

_EXAMPLE = """\
  polymux simulate examples/workloads/four-models.toml
  polymux simulate WORKLOAD.toml --policy temporal --policy spacetime --load 1.2
  polymux simulate WORKLOAD.toml --gantt batches.png --trace batches.json     # the trace is for ui.perfetto.dev

The same workload and seed give the same result, to the nanosecond. docs/simulation.md describes workload files.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "simulate",
        help="what policies would make of a workload, in virtual time",
        description="Simulate models with deadlines on devices: the engine and the policies of the server in virtual"
        " time, with models and devices from tables or profiles.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    policies = "\n".join(f"{name}: {summary}" for name, summary in registry.summaries().items())
    parser.add_argument("workload", metavar="WORKLOAD.toml", type=Path, help="the workload file")
    parser.add_argument(
        "--policy", action="append", default=[], metavar="NAME[=OPTION]",
        help=f"the policy; may be repeated. Without, those of the file. There are {policies.replace('%', '%%')}",
    )  # fmt: skip
    parser.add_argument("--devices", type=int, metavar="N", help="so many devices of the file's first kind")
    parser.add_argument(
        "--load", type=float, default=1.0, metavar="FACTOR", help="times the requests of the file"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of all random numbers, instead of the file's")
    parser.add_argument(
        "--duration", type=float, metavar="S", help="simulated seconds, instead of the file's"
    )
    parser.add_argument("--json", action="store_true", help="print only the results, as JSON")
    parser.add_argument(
        "--gantt", type=Path, metavar="FILE.png", help="draw who ran when on which part of a device"
    )
    parser.add_argument("--from", dest="start", type=float, metavar="S", help="where the picture begins")
    parser.add_argument("--span", type=float, metavar="S", help="how many seconds the picture shows")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE.json", help="write every batch for ui.perfetto.dev"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write every step for polymux replay; one policy"
    )
    add_store_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Simulate, and print or write what was asked for."""
    workload = _adapted(read_workload(options.workload, store_path(options)), options)
    policies = tuple(dict.fromkeys(options.policy)) or workload.policies or DEFAULT_POLICIES
    for policy in policies:
        registry.load(policy)
    if options.record is not None and len(policies) > 1:
        raise InvalidRequest(f"--record: there are {len(policies)} policies; give one with --policy")
    _check_files(options)
    runs = _run(workload, policies, options)
    if options.gantt is not None:
        gantt.draw(options.gantt, workload, runs, options.start, options.span)
    if options.trace is not None:
        perfetto.write_trace(options.trace, runs)
    if options.json:
        print(json.dumps(results(workload, runs)))
    else:
        print_report(terminal(), workload, runs)
        for file in (options.gantt, options.trace):
            if file is not None:
                print(f"\nwrote {file}")
    check_stalled(runs)
    return 0


def _adapted(workload: Workload, options: argparse.Namespace) -> Workload:
    """Put what the command line says in the place of what the file says."""
    for name, least in (("devices", 1), ("seed", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise InvalidRequest(f"--{name} {value}: give {least} or more")
    for name in ("duration", "span", "load"):
        value = getattr(options, name)
        if value is not None and not 0 < value <= 1e6:
            raise InvalidRequest(f"--{name} {value}: give more than 0, and at most 1000000")
    if options.start is not None and not 0 <= options.start <= 1e6:
        raise InvalidRequest(f"--from {options.start}: give 0 to 1000000")
    if options.seed is not None:
        workload = replace(workload, seed=options.seed)
    if options.duration is not None:
        duration_ns = round(options.duration * 1e9)
        if duration_ns <= workload.warmup_ns:
            raise InvalidRequest(
                f"--duration {options.duration}: give more than the file's warmup_s, {workload.warmup_ns / 1e9:g}"
            )
        workload = replace(workload, duration_ns=duration_ns)
    return workload if options.load == 1.0 else workload.scaled(options.load)


def _check_files(options: argparse.Namespace) -> None:
    """Check before a long simulation that its results can be written."""
    if options.gantt is not None:
        gantt.check_picture(options.gantt)
    for file in (options.gantt, options.trace, options.record):
        if file is not None and not file.parent.is_dir():
            raise InvalidRequest(f"{file}: there is no folder {file.parent}; make it, or name another one")


def _run(workload: Workload, policies: Sequence[str], options: argparse.Namespace) -> list[PolicyRun]:
    keep_spans = options.gantt is not None or options.trace is not None
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    runs = []
    gc.collect()
    gc.freeze()  # what was read is not looked at again and again: a third of the time
    with ExitStack() as stack:
        console = Console(stderr=True)
        bar = stack.enter_context(
            Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        )
        lines = None if console.is_terminal else ProgressLines()
        record = (
            None if options.record is None else stack.enter_context(_recording(options.record, policies[0]))
        )
        for policy in policies:
            task = bar.add_task(policy, total=None)

            def told(what: str, done: int, total: int, policy: str = policy, task: TaskID = task) -> None:
                bar.update(task, description=f"{policy}: {what}", completed=done, total=total)
                if lines is not None:
                    lines.tell(f"{policy}: {what}", done, total)

            runs.append(
                run_policy(
                    workload,
                    policy,
                    devices=options.devices,
                    keep_spans=keep_spans,
                    record=record,
                    progress=told,
                )
            )
            bar.update(task, description=policy, completed=1, total=1)
    return runs


@contextmanager
def _recording(path: Path, policy: str) -> Iterator[Record]:
    """Write each step to a file."""
    with path.open("w", encoding="utf-8") as file:
        file.write(REQUESTS.write_header(policy) + "\n")

        def record(event: ServingEvent, now: int, decisions: Sequence[ServingDecision]) -> None:
            file.write(write_step(Step(now, event, tuple(decisions))) + "\n")

        yield record
