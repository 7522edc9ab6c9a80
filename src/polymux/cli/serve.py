"""``polymux serve``: models from a directory over the Open Inference Protocol."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import polymux
from polymux.cli.profile_store import add_store_option, store_path
from polymux.client import Client
from polymux.core.errors import InvalidRequest, PolymuxError
from polymux.policy.serving import registry
from polymux.serving.cutting import PartitionChoice, parse_partition
from polymux.serving.front_end import ServeOptions, serve
from polymux.serving.limits import Limits
from polymux.serving.scheduling.settings import DEFAULT_SLO_MS, Choice, SchedulingOptions, parse_choice
from polymux.serving.stages.settings import StageOptions

_EXAMPLE = """\
The repository is laid out as Triton's:

  MODELS_DIR/NAME/1/model.onnx       a version of a model
  MODELS_DIR/NAME/config.pbtxt       optional; completed from the model

Then, for example: curl http://127.0.0.1:8000/v2/models/NAME
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    defaults = Limits()
    parser = subparsers.add_parser(
        "serve",
        help="serve ONNX models over HTTP (Open Inference Protocol)",
        description="Serve the ONNX models of a repository over HTTP (Open Inference Protocol, version 2). "
        "Joins the running Polymux server; without one, it runs the same runtime itself.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models_dir", metavar="MODELS_DIR", type=Path, help="the model repository")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=_port,
        default=8000,
        help="port to listen on; 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument("--socket", metavar="PATH", help="the Polymux server to join, which must run")
    parser.add_argument("--device", metavar="ID", help="run all models on this device, such as cpu:0")
    parser.add_argument(
        "--partition",
        metavar="[MODEL=]HOW",
        type=_partition,
        action="append",
        default=[],
        help="cut models into parts, so that more urgent tasks run between these: auto (as finely as it costs 2 %%),"
        " a number of parts, a longest part such as 5ms, or off (default); may be repeated, and wins for MODEL over its"
        " config.pbtxt; see polymux partition",
    )
    parser.add_argument(
        "--max-body-nbytes",
        metavar="N",
        type=_positive,
        default=defaults.body_nbytes,
        help="greatest request body in bytes; larger ones are answered 413 (default: %(default)s)",
    )
    parser.add_argument(
        "--max-header-nbytes",
        metavar="N",
        type=_positive,
        default=defaults.header_nbytes,
        help="greatest request header in bytes; larger ones are answered 431 (default: %(default)s)",
    )
    parser.add_argument(
        "--max-connections",
        metavar="N",
        type=_positive,
        default=defaults.connections,
        help="connections at a time; further ones get 503 (default: %(default)s, or what ulimit -n allows)",
    )
    _add_scheduling(parser)
    _add_stages(parser)
    parser.add_argument("--verbose", action="store_true", help="also log what is only useful to find faults")
    parser.set_defaults(run=run)


def _add_scheduling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "deadlines", "With --policy, requests wait for batches on shares of the devices, under deadlines."
    )
    group.add_argument(
        "--policy",
        metavar="NAME",
        help=f"who runs when, and on what: {', '.join(registry.names())} (default: in the order of arrival)",
    )
    for name, what in (
        ("slo-ms", f"milliseconds within which requests are to be answered (default: {DEFAULT_SLO_MS:g})"),
        ("priority", "larger is served first (default: 0)"),
        ("weight", "part of the device time when there is not enough (default: 100)"),
    ):
        group.add_argument(
            f"--{name}",
            metavar="[MODEL=]N",
            type=_choice,
            action="append",
            default=[],
            help=f"{what}; may be repeated, and wins for MODEL over its config.pbtxt",
        )
    add_store_option(group)


def _add_stages(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "input stages",
        "Models whose config.pbtxt has the parameter input_stage take files or texts; their stages run on threads of"
        " their own beside the devices.",
    )
    group.add_argument(
        "--share-input",
        action="store_true",
        help="models that have the same stage and get the same bytes share one run of it; the parameter share_input of"
        " config.pbtxt says otherwise for one model",
    )
    group.add_argument(
        "--stage-threads",
        metavar="N",
        type=_positive,
        help="threads for input stages (default: half of the cores)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if args.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not a line for each broken client
    limits = Limits(
        body_nbytes=args.max_body_nbytes,
        header_nbytes=args.max_header_nbytes,
        connections=args.max_connections,
    )
    scheduling = None
    if args.policy is not None:
        registry.load(args.policy)  # a wrong name ends it here
        scheduling = SchedulingOptions(args.policy, store_path(args), args.slo_ms, args.priority, args.weight)
    elif args.slo_ms or args.priority or args.weight:
        print("polymux serve: --slo-ms, --priority and --weight need --policy", file=sys.stderr)
        return 2
    stages = StageOptions(args.stage_threads, args.share_input)
    options = ServeOptions(
        args.models_dir, args.host, args.port, args.device, scheduling, args.partition, limits, stages
    )

    # A runtime of its own divides its devices for the policy; a server's are divided by its operator.
    devices = () if scheduling is None else ("cpu,shares=nested",)

    def connect(start: bool | None) -> Client:
        return polymux.connect(args.socket, name="polymux serve", start=start, devices=devices)

    def listening(host: str, port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        print(f"serving {args.models_dir} on http://{shown}:{port} (Ctrl-C ends it)", flush=True)

    try:
        serve(options, connect(None), lambda: connect(False), listening)
    except (PolymuxError, OSError) as error:
        print(f"polymux serve: {error}", file=sys.stderr)
        return 1
    return 0


def _choice(text: str) -> Choice:
    try:
        return parse_choice(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _partition(text: str) -> PartitionChoice:
    try:
        return parse_partition(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is no port; give 0 to 65535")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{value} must be greater than 0")
    return value
