"""The command line of an application: what the scripts in ``examples/`` share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter

import polymux
from polymux.apps.application import Application, Arrays
from polymux.apps.lane import Lane, QueueLane
from polymux.apps.native_lane import native_lanes
from polymux.core.errors import PolymuxError
from polymux.core.nbytes import parse_nbytes

MIB = 1 << 20


def parser_of(application: type[Application]) -> argparse.ArgumentParser:
    """Make the parser of an application's script."""
    parser = argparse.ArgumentParser(
        description=f"{application.name}: {application.title}. Runs on the server of this user, or of $POLYMUX_SOCKET;"
        " without one, the runtime starts inside this process.",
    )
    parser.add_argument(
        "--size", type=_size, default=16 * MIB, metavar="NBYTES", help="of all buffers (default: 16MiB)"
    )
    parser.add_argument(
        "--queues", type=_positive, default=1, metavar="N", help="divide the work (default: 1)"
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="ID",
        help="pin the queues to this device, such as cpu:0; several are used in turn (default: the server decides)",
    )
    parser.add_argument("--repeat", type=_positive, default=3, metavar="N", help="runs (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    parser.add_argument("--socket", help="the server's socket (default: that of this user)")
    parser.add_argument(
        "--native",
        choices=["cpu", "opencl"],
        help="also run the same kernels directly on this kind of device, without a server",
    )
    return parser


def main(
    application: type[Application],
    *,
    parser: argparse.ArgumentParser | None = None,
    show: Callable[[argparse.Namespace, Arrays], None] | None = None,
) -> int:
    """Run an application as its script does: make it, run it, show its times, check its result.

    Parameters
    ----------
    application : type of Application
    parser : ArgumentParser, optional
        That of `parser_of` with arguments added.
    show : callable, optional
        Called with the arguments and the checked result.

    Returns
    -------
    int
        Exit status: 0, or 1 when something went wrong, which is told on standard error.
    """
    arguments = (parser or parser_of(application)).parse_args()
    try:
        _run(application, arguments, show)
    except PolymuxError as error:
        print(f"{application.name}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(
    application: type[Application],
    arguments: argparse.Namespace,
    show: Callable[[argparse.Namespace, Arrays], None] | None,
) -> None:
    made = application.of_size(arguments.size, arguments.seed)
    print(f"{made.name}: {made.title}; {made.nbytes / MIB:.1f} MiB of buffers")
    with ExitStack() as stack:
        client = stack.enter_context(
            polymux.connect(arguments.socket, name=made.name, segment_nbytes=2 * made.nbytes + 256 * MIB)
        )
        devices = arguments.device or [None]
        lanes = [
            QueueLane(stack.enter_context(client.queue(device=devices[index % len(devices)])))
            for index in range(arguments.queues)
        ]
        where = " and ".join(arguments.device) or f"one of {', '.join(client.devices)}"
        plural = "s" if arguments.queues > 1 else ""
        result = _timed(made, lanes, arguments.repeat, f"{arguments.queues} queue{plural} on {where}")
        print("checking the result against NumPy")
        made.check(result)
        print("the result is right")
        if show is not None:
            show(arguments, result)
        if arguments.native:
            native = [stack.enter_context(lane) for lane in native_lanes(arguments.native)]
            made.check(_timed(made, native, arguments.repeat, f"{arguments.native} without a server"))


def _timed(application: Application, lanes: Sequence[Lane], repeat: int, where: str) -> Arrays:
    result: Arrays = {}
    for turn in range(repeat):
        start = perf_counter()
        result = application.run(lanes)
        print(f"run {turn + 1} of {repeat}: {1e3 * (perf_counter() - start):.1f} ms, {where}", flush=True)
    return result


def _size(text: str) -> int:
    try:
        return parse_nbytes(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}") from None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of 1 or more")
    return int(text)
