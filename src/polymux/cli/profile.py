"""``polymux profile``: how long batches of models take on the shares of a device."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from polymux.cli.profile_models import find_models, shape_option, values_option
from polymux.cli.profile_store import add_store_option, store_path
from polymux.cli.profile_tables import print_profile
from polymux.cli.text import duration, terminal
from polymux.client import Client
from polymux.core.errors import PolymuxError
from polymux.profiles import ProfileStore
from polymux.profiling.batched import save_batched
from polymux.profiling.confidence import CONFIDENCES
from polymux.profiling.model import ModelSource, PreparedModel, prepare
from polymux.profiling.options import MIN_REPEATS, ProfileOptions
from polymux.profiling.private_server import PrivateServer
from polymux.profiling.roof import measure_roofs
from polymux.profiling.run import Outcome, Step, profile
from polymux.profiling.samples import PREFIX, SAMPLES
from polymux.profiling.summary import summarize
from polymux.profiling.target import Target, targets

_DEVICE = "cpu,shares=nested"
_EPILOG = f"""\
MODEL is an ONNX file, DIR a folder of them or a model repository as for 'polymux serve'; {PREFIX}NAME is a real model
from an installed package: {", ".join(SAMPLES)}.

Each place of the grid of shares and batches is warmed up and repeated until the confidence interval of its median is
narrow enough, and stored at once. What the store has is not measured again, so after Ctrl-C the same command goes on
where it stopped. Keep the machine idle otherwise.

  polymux profile resnet50.onnx                        all shares of this machine's cores, batches 1 to 16
  polymux profile ocr.onnx --shape x=Nx3x48x320        extents that the file leaves free
  polymux profile show                                 what is in the store
  polymux profile show resnet50 --picture r.png        one profile, with its picture
  polymux profile together a.onnx b.onnx               how much models slow each other down
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    defaults = ProfileOptions()
    parser = subparsers.add_parser(
        "profile",
        help="measure models over shares and batches",
        description="Measure how long batches of models take on the shares of a device, and store it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", metavar="MODEL|DIR", nargs="+", help="what to measure, see below")
    add_store_option(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--device",
        metavar="DEVICE",
        help=f"measure on a private server with this device, as for 'polymux up' (default: {_DEVICE})",
    )
    where.add_argument(
        "--socket", metavar="PATH", help="measure on this running server, which should be idle"
    )
    _add_model_options(parser)
    _add_grid_options(parser, defaults)
    parser.set_defaults(run=run)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", help="call the model so (default: as its file, or its folder in a repository)"
    )
    parser.add_argument(
        "--shape",
        metavar="NAME=SHAPE",
        action="append",
        type=shape_option,
        default=[],
        help="shape of an input, with N where the batch is: x=Nx3x224x224; of several models: MODEL:x=...; may be"
        " repeated",
    )
    parser.add_argument(
        "--values",
        metavar="NAME=LOW..HIGH",
        action="append",
        type=values_option,
        default=[],
        help="values of an input (default: 0..1), named as for --shape; may be repeated",
    )

    parser.add_argument(
        "--save-batched",
        metavar="DIR",
        type=Path,
        help="write models whose batch was made free into this model repository, with their profiles",
    )


def _add_grid_options(parser: argparse.ArgumentParser, defaults: ProfileOptions) -> None:
    shown = ",".join(map(str, defaults.batches))
    parser.add_argument(
        "--batches", metavar="N,N", type=_axis, default=defaults.batches, help=f"default: {shown}"
    )
    parser.add_argument(
        "--units", metavar="N,N", type=_axis, default=(), help="shares, in units (default: all)"
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=defaults.confidence,
        help=f"of the interval of each median: one of {', '.join(map(str, CONFIDENCES))} (default: %(default)s)",
    )
    parser.add_argument(
        "--precision",
        metavar="PART",
        type=float,
        default=defaults.precision,
        help="half of the interval is to be at most this part of the median (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=int,
        default=defaults.max_repeats,
        help="repeat a place at most so often (default: %(default)s)",
    )
    parser.add_argument(
        "--place-seconds",
        metavar="S",
        type=float,
        default=defaults.place_s,
        help="longest time for one place, after ten repeats (default: %(default)g)",
    )
    parser.add_argument(
        "--longest-batch",
        metavar="S",
        type=float,
        default=defaults.batch_s,
        help="leave out batches that take longer, in s (default: %(default)g)",
    )
    parser.add_argument("--again", action="store_true", help="measure also what the store has")


def run(arguments: argparse.Namespace) -> int:
    """Measure; 1 when a model could not be measured."""
    options = ProfileOptions(
        arguments.batches,
        arguments.units,
        arguments.confidence,
        arguments.precision,
        min(MIN_REPEATS, arguments.repeats),
        arguments.repeats,
        arguments.place_seconds,
        arguments.longest_batch,
        arguments.again,
    )
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory(prefix="polymux-profile-") as name:
        folder = Path(name)
        shapes, values = dict(arguments.shape), dict(arguments.values)
        models, problems = find_models(arguments.models, shapes, values, arguments.name, folder)
        for problem in problems:
            _complain(problem)
        with ProfileStore(store_path(arguments), write=True) as store, ExitStack() as stack:
            connect = cache(lambda: stack.enter_context(_connected(arguments)))
            work = _Work(connect, store, options, folder, arguments.save_batched)
            measured = [_profile_all(source, work) for source in models]
    return 0 if all(measured) and not problems else 1


@dataclass(frozen=True, slots=True)
class _Work:
    """What is the same for all models.

    Parameters
    ----------
    connect : callable
        Gives the connection to the server; starts it when it is called first, so that a model that cannot be read is
        told at once.
    store : ProfileStore
    options : ProfileOptions
    folder : pathlib.Path
        For files that are needed meanwhile.
    batched : pathlib.Path, optional
        Repository for models whose batch was made free.
    """

    connect: Callable[[], Client]
    store: ProfileStore
    options: ProfileOptions
    folder: Path
    batched: Path | None


def _profile_all(source: ModelSource, work: _Work) -> bool:
    """Measure one model on every device; whether it worked."""
    console = Console(stderr=True, highlight=False)
    try:
        with console.status(f"{source.name}: reading the model"):
            model = prepare(source, work.folder)
        if model.why_fixed:
            console.print(
                f"{escape(source.name)}: its batch stays 1: {escape(model.why_fixed)}", soft_wrap=True
            )
        for target in targets(work.connect()):
            _profile_on(target, model, work, console)
    except (PolymuxError, OSError) as error:
        _complain(f"{source.name}: {error}")
        return False
    except KeyboardInterrupt:
        print(
            f"\nstopped; what was measured is in {work.store.path}, and the same command goes on from there",
            file=sys.stderr,
        )
        raise
    return True


def _profile_on(target: Target, model: PreparedModel, work: _Work, console: Console) -> None:
    outcome = _profile(model, target, work.store, work.options, console)
    with console.status(f"{target.device}: what it can do at most"):
        measure_roofs(target, work.store, work.folder, work.options)
    _tell(model, target, outcome, console)
    if work.batched is not None and model.record.batching == "rewritten":
        path = save_batched(model, target, work.store, work.batched)
        console.print(
            f"{escape(model.record.name)}: with a free batch in {escape(str(path))}", soft_wrap=True
        )
    summary = summarize(work.store, model.record, target.identity)
    if summary is not None:
        print_profile(summary, terminal())


def _profile(
    model: PreparedModel, target: Target, store: ProfileStore, options: ProfileOptions, console: Console
) -> Outcome:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(model.record.name, total=None, last="")

        def report(step: Step) -> None:
            units = "1 unit" if step.units == 1 else f"{step.units} units"
            last = "" if step.last is None else f"last {duration(step.last.median_ns)} x {step.last.repeats}"
            what = f"{model.record.name}: {units}, batch {step.batch}"
            progress.update(bar, description=what, completed=step.done, total=step.total, last=last)

        return profile(model, target, store, options, report)


def _tell(model: PreparedModel, target: Target, outcome: Outcome, console: Console) -> None:
    parts = [f"{outcome.measured} places measured on {target.device}"]
    if outcome.kept:
        parts.append(f"{outcome.kept} were in the store")
    if outcome.imprecise:
        parts.append(f"{outcome.imprecise} less precise than asked for (is the machine busy?)")
    console.print(f"{escape(model.record.name)}: {'; '.join(parts)}", soft_wrap=True)
    if outcome.left_out:
        console.print(f"{escape(model.record.name)}: left out: {escape(outcome.left_out)}", soft_wrap=True)


@contextmanager
def _connected(arguments: argparse.Namespace) -> Iterator[Client]:
    """Connect to the server to measure on: the given one, or a private one."""
    if arguments.socket is not None:
        with Client(arguments.socket, name="polymux profile") as client:
            yield client
        return
    with PrivateServer([arguments.device or _DEVICE]) as server, server.connect("polymux profile") as client:
        yield client


def _end(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    """End by way of all ``with`` blocks, which end the server and remove files."""
    sys.exit(128 + number)


def _complain(problem: str) -> None:
    print(f"polymux profile: {problem}", file=sys.stderr)


def _axis(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; write numbers with commas between them: 1,2,4") from None
