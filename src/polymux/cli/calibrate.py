"""``polymux calibrate``: how fast the devices compute parts of operations that they are to compute together."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape

from polymux.cli.profile_store import add_store_option, store_path
from polymux.cli.text import duration, table, terminal
from polymux.client import Client
from polymux.profiles import ProfileStore
from polymux.profiles.coexec import BUSY
from polymux.profiling.coexec.calibrate import calibrate
from polymux.profiling.coexec.records import OPERATIONS, Calibration, CalibrationOptions, Place
from polymux.profiling.private_server import PrivateServer

_DEVICES = ("cpu,shares=nested", "opencl,shares=nested")
_EPILOG = """\
For each share of each device and each operation, the best library and tile is found, then products of matrices and
layers of ResNet-50 and VGG-19 are timed, and models of these times stored with their errors. What the store has is not
measured again, unless a device, its driver or a library has changed. Keep the machine idle otherwise: what was
disturbed is repeated, and what stays doubtful is told.

  polymux calibrate                                    this machine's cores and OpenCL devices, one core to all
  polymux calibrate --device cpu:0,memory=host         one core that works on the applications' memory
  polymux calibrate --operation gemm --again           one operation, anew
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    defaults = CalibrationOptions()
    parser = subparsers.add_parser(
        "calibrate",
        help="measure devices for operations on all of them",
        description="Measure how fast the devices compute parts of a matrix product or a convolution, and store it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_store_option(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--device",
        metavar="DEVICE",
        action="append",
        help="measure on a private server with this device, as for 'polymux up'; may be repeated (default:"
        f" {' and '.join(_DEVICES)})",
    )
    where.add_argument(
        "--socket", metavar="PATH", help="measure on this running server, which should be idle"
    )
    parser.add_argument(
        "--operation",
        choices=OPERATIONS,
        action="append",
        help="only this one; may be repeated (default: all)",
    )
    parser.add_argument("--dtype", choices=("f4", "f8"), default="f4", help="default: %(default)s")
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        default=defaults.device_s,
        help="time for the samples of a device, in s (default: %(default)g)",
    )
    parser.add_argument("--again", action="store_true", help="measure also what the store has")
    parser.add_argument("--quick", action="store_true", help="few and small problems, to try the way")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Calibrate; 1 when nothing could be."""
    options = CalibrationOptions(
        operations=tuple(arguments.operation or OPERATIONS),
        dtype=arguments.dtype,
        device_s=arguments.seconds,
        again=arguments.again,
        quick=arguments.quick,
    )
    console = Console(stderr=True, highlight=False)
    found: list[Calibration] = []
    with (
        ProfileStore(store_path(arguments), write=True) as store,
        _connected(arguments) as client,
        console.status("starting") as status,
    ):

        def report(place: Place, kernel: str, doing: str) -> None:
            status.update(f"{place.name}: {kernel}: {escape(doing)}")

        server = int(client.status()["server"]["pid"])
        for calibration in calibrate(client, store, options, report, (server,)):
            found.append(calibration)
            if calibration.unit is None:
                text = f"{calibration.place.name}: {calibration.kernel}: left out: {calibration.why_not}"
                console.print(escape(text), soft_wrap=True)
        path = store.path
    if arguments.json:
        print(json.dumps({"store": str(path), "units": [_record(item) for item in found]}, indent=2))
    else:
        _print(found)
        console.print(f"stored in {path}", soft_wrap=True)
        if any(item.is_busy for item in found):
            text = "the machine was busy: those marked so are in doubt; measure them --again when it is idle"
            console.print(f"[yellow]{text}[/yellow]", soft_wrap=True)
    return 0 if any(item.unit is not None for item in found) else 1


def _print(found: list[Calibration]) -> None:
    columns = ("share", "kernel", "computed by", "GFLOP/s", "MAPE", "p95", "RMSE", "repeated", "took")
    made = table("Calibrated", columns, columns[3:])
    for item in found:
        if item.unit is None:
            continue
        errors = item.unit.compute.errors
        method = item.compared[0][0] if item.compared else ""
        by = f"{item.unit.library}" if not method.startswith("packed") else f"Polymux, {method}"
        told = "in the store" if item.is_stored else duration(item.seconds * 1e9)
        made.add_row(
            item.place.name,
            item.kernel,
            escape(by) + (" [yellow](busy)[/yellow]" if BUSY in item.unit.notes else ""),
            f"{item.rate / 1e9:.1f}",
            "-" if errors is None else f"{100 * errors.mape:.1f} %",
            "-" if errors is None else f"{100 * errors.p95:.1f} %",
            "-" if errors is None else duration(errors.rmse_s * 1e9),
            str(item.disturbed),
            told,
        )
    terminal().print(made)


def _record(item: Calibration) -> dict[str, Any]:
    unit = item.unit
    errors = None if unit is None else unit.compute.errors
    return {
        "device": item.place.device["id"],
        "units": item.place.units,
        "kernel": item.kernel,
        "why_not": item.why_not or None,
        "library": None if unit is None else unit.library,
        "scalars": None if unit is None else dict(unit.scalars),
        "operations_per_s": item.rate,
        "mape": None if errors is None else errors.mape,
        "p95": None if errors is None else errors.p95,
        "rmse_s": None if errors is None else errors.rmse_s,
        "compared": dict(item.compared),
        "disturbed": item.disturbed,
        "busy": item.is_busy,
        "seconds": item.seconds,
    }


@contextmanager
def _connected(arguments: argparse.Namespace) -> Iterator[Client]:
    """Connect to the server to measure on: the given one, or a private one."""
    if arguments.socket is not None:
        with Client(arguments.socket, name="polymux calibrate") as client:
            yield client
        return
    devices = arguments.device or _DEVICES
    with PrivateServer(devices) as server, server.connect("polymux calibrate") as client:
        yield client
