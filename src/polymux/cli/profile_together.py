"""``polymux profile together``: how much models slow each other down on one device."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from polymux.cli.connection import add_json_option, print_json
from polymux.cli.profile_models import find_models
from polymux.cli.profile_store import add_store_option, store_path
from polymux.cli.text import table, terminal
from polymux.client import Client
from polymux.core.errors import ConfigError
from polymux.perfmodel.interference import Interference
from polymux.profiles import Beside, DeviceIdentity, ProfileStore
from polymux.profiling.model import prepare
from polymux.profiling.options import MOST_BATCH, ProfileOptions
from polymux.profiling.private_server import PrivateServer
from polymux.profiling.together import measure_together, pair_streams

_DEVICE = "cpu,shares=nested"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "profile together",
        help="measure how much models slow each other down",
        description="Measure each model beside each of them, itself included, on shares without a common core, and"
        " store it. Without MODEL, show what is stored.",
    )
    parser.add_argument("models", metavar="MODEL|DIR", nargs="*", help="as for 'polymux profile'")
    add_store_option(parser)
    add_json_option(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--device",
        metavar="DEVICE",
        help=f"measure on a private server with this device, as for 'polymux up' (default: {_DEVICE})",
    )
    where.add_argument(
        "--socket", metavar="PATH", help="measure on this running server, which should be idle"
    )
    parser.add_argument(
        "--batch", metavar="N", type=int, default=4, help="of every model whose batch is free (default: 4)"
    )
    parser.add_argument("--again", action="store_true", help="measure also what the store has")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure if models are given, and print what is in the store."""
    if not 1 <= arguments.batch <= MOST_BATCH:
        raise ConfigError("command line", "--batch", str(arguments.batch), f"give 1 to {MOST_BATCH}")
    if arguments.models:
        _measure(arguments)
    with ProfileStore(store_path(arguments)) as store:
        found = [
            (device, store.besides(key), store.interference(key, names), names)
            for names in [{model.key: model.name for model in store.models()}]
            for key, device in store.devices().items()
        ]
    if arguments.json:
        print_json([_data(device, pairs, fitted, names) for device, pairs, fitted, names in found if pairs])
        return 0
    console = terminal()
    if not any(pairs for _, pairs, _, _ in found):
        console.print("no models were measured together; name some, as for 'polymux profile'", soft_wrap=True)
    for device, pairs, fitted, names in found:
        if pairs:
            _print(device, pairs, fitted, names, console)
    return 0


def _measure(arguments: argparse.Namespace) -> None:
    console = Console(stderr=True, highlight=False)
    with tempfile.TemporaryDirectory(prefix="polymux-profile-") as name:
        folder = Path(name)
        sources, problems = find_models(arguments.models, {}, {}, None, folder)
        if problems:
            raise ConfigError("command line", "models", "; ".join(problems), "leave out what does not load")
        with console.status("reading the models"):
            models = [prepare(source, folder) for source in sources]
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with (
            ProfileStore(store_path(arguments), write=True) as store,
            _connected_twice(arguments) as (client, other),
            Progress(*columns, console=console, transient=True) as progress,
        ):
            bar = progress.add_task("measuring", total=None)

            def report(done: int, total: int, what: str) -> None:
                progress.update(bar, description=what, completed=done, total=total)

            pairing = pair_streams(client, other)
            options = ProfileOptions(again=arguments.again)
            outcome = measure_together(models, pairing, store, options, arguments.batch, report)
        parts = [
            f"{outcome.measured} pairs measured on {pairing.measured.device}, units each: {pairing.units}"
        ]
        if outcome.kept:
            parts.append(f"{outcome.kept} were in the store")
        if outcome.imprecise:
            parts.append(f"{outcome.imprecise} less precise than asked for (is the machine busy?)")
        console.print("; ".join(parts), soft_wrap=True)


def _print(
    device: DeviceIdentity,
    pairs: list[Beside],
    fitted: Interference,
    names: dict[str, str],
    console: Console,
) -> None:
    slowdowns = {(its.model, its.neighbour): its.slowdown for its in pairs}
    models = sorted({its.model for its in pairs}, key=names.__getitem__)
    others = sorted({its.neighbour for its in pairs}, key=names.__getitem__)
    headings = (*(f"beside {escape(names[key])}" for key in others), "sensitivity", "pressure")
    made = table(f"Times as long as alone, on {escape(str(device))}", ("model", *headings), headings)
    for key in models:
        cells = [f"{slowdowns[key, other]:.2f}" if (key, other) in slowdowns else "-" for other in others]
        numbers = [fitted.sensitivity.get(names[key]), fitted.pressure.get(names[key])]
        made.add_row(
            escape(names[key]), *cells, *("-" if value is None else f"{value:.2f}" for value in numbers)
        )
    console.print(made)
    if fitted.largest_error is not None:
        console.print(
            f"[dim]slowdown = 1 + sensitivity × Σ pressure × share; largest error where a pair is left out:"
            f" {fitted.largest_error:.0%}[/dim]",
            soft_wrap=True,
        )


def _data(
    device: DeviceIdentity, pairs: list[Beside], fitted: Interference, names: dict[str, str]
) -> dict[str, Any]:
    return {
        "device": {"key": device.key, "description": str(device), "units": device.units},
        "pairs": [
            {
                "model": names[its.model],
                "neighbour": names[its.neighbour],
                "slowdown": its.slowdown,
                "alone_ns": its.alone_ns,
                "beside_ns": its.beside_ns,
                "units": its.units,
                "batch": its.batch,
                "neighbour_units": its.neighbour_units,
                "neighbour_batch": its.neighbour_batch,
            }
            for its in pairs
        ],
        "sensitivity": dict(fitted.sensitivity),
        "pressure": dict(fitted.pressure),
        "largest_error": fitted.largest_error,
    }


@contextmanager
def _connected_twice(arguments: argparse.Namespace) -> Iterator[tuple[Client, Client]]:
    """Connect twice to the server to measure on: the given one, or a private one."""
    name = "polymux profile"
    if arguments.socket is not None:
        with Client(arguments.socket, name=name) as one, Client(arguments.socket, name=name) as other:
            yield one, other
        return
    with (
        PrivateServer([arguments.device or _DEVICE]) as server,
        server.connect(name) as one,
        server.connect(name) as other,
    ):
        yield one, other
