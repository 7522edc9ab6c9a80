"""``polymux up``: start the server."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import resource
import signal
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from polymux.cli.connection import add_socket_option, socket_path
from polymux.cli.detach import detach
from polymux.cli.text import size
from polymux.core.errors import PolymuxError
from polymux.metrics.address import LOOPBACK, Address, parse_address
from polymux.policy import registry
from polymux.policy.jobs import registry as job_registry
from polymux.server.config import Config, read_config
from polymux.server.options import DEFAULT_JOBS, KernelsFile, RuntimeOptions
from polymux.server.runtime import Runtime

ENDING = (signal.SIGTERM, signal.SIGINT)

_EPILOG = """\
Devices:
  cpu                          all cores, on shared memory (no copies)
  cpu:0-1,streams=2            these cores, with memory of their own
  cpu,shares=3+1               two streams, on three cores and on one
  cpu,shares=nested            streams on all cores, each half, each quarter, ...; for queues pinned to them
  opencl, opencl:0             every OpenCL device, or one of them
  simulated=FILE.toml          a device that a file describes
Options follow with commas: streams=N, shares=whole|split|nested|N+N, memory=host|own, memory_nbytes=512MiB.

What is given here goes before what the configuration file says:
  socket = "/run/polymux.sock"          devices = ["cpu", "opencl:0"]
  policy = "least_loaded"               jobs = "switchflow"
  kernels = ["a.py", { file = "b.toml", isolate = true }]
  allow_uids = [1000]                   trace = "trace.json"        record = "run.jsonl"
  metrics = "127.0.0.1:9464"
  [limits]
  segment_nbytes = "1 GiB"              max_segment_nbytes = "8 GiB"        max_clients = 120
  worker_nbytes = "4 GiB"
"""


def _describe_policies() -> str:
    lines = [f"  {name:<14} {summary}" for name, summary in registry.summaries().items()]
    lines += ["", "Policies for jobs:"]
    lines += [f"  {name:<14} {summary}" for name, summary in job_registry.summaries().items()]
    return "\nPolicies:\n" + "\n".join(lines) + "\n"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "up",
        help="start the server",
        description="Start the server that owns this machine's accelerators. It runs until Ctrl-C, SIGTERM or"
        " 'polymux down'.",
        epilog=f"{_EPILOG}{_describe_policies()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="configuration in TOML, see below")
    add_socket_option(parser)
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        action="append",
        default=[],
        help="a device to use, see below; may be repeated (default: cpu and every OpenCL device)",
    )
    policies = ", ".join(registry.names())
    parser.add_argument(
        "--policy",
        metavar="NAME[=OPTION]",
        help=f"how queues are assigned: {policies}, or a file that ends with .py; see below (default:"
        f" {registry.DEFAULT})",
    )
    job_policies = ", ".join(job_registry.names())
    parser.add_argument(
        "--jobs",
        metavar="NAME[=OPTION]",
        help=f"how jobs (polymux run, polymux.training, Client.lease) and tasks share devices: {job_policies}; see"
        " below"
        f" (default: {DEFAULT_JOBS})",
    )
    parser.add_argument(
        "--kernels",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="a kernels file, .py or .toml; may be repeated",
    )
    parser.add_argument(
        "--isolated-kernels",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="the same, but its kernels run in worker processes, so that a crash hurts nobody else",
    )
    parser.add_argument(
        "--trace", metavar="FILE", type=Path, help="write a timeline that opens in Perfetto (ui.perfetto.dev)"
    )
    parser.add_argument(
        "--record", metavar="FILE", type=Path, help="record events and decisions for 'polymux replay'"
    )
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        type=_address,
        help=f"serve Prometheus metrics at http://HOST:PORT/metrics (host: {LOOPBACK} if none is given; port 0: a"
        " free one)",
    )
    parser.add_argument("--detach", action="store_true", help="return when it is ready; it goes on by itself")
    parser.add_argument(
        "--log", metavar="FILE", type=Path, help="with --detach: where it writes (default: beside the socket)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start the server; returns when it has ended, or with ``--detach`` when it is ready."""
    config = read_config(options.config) if options.config is not None else Config(None, RuntimeOptions())
    path = socket_path(options) if options.socket is not None or config.socket is None else config.socket
    if options.detach:
        return detach(path, options.log or path.with_suffix(".log"))
    return _serve(_merged(options, config.runtime), path)


def _merged(options: argparse.Namespace, configured: RuntimeOptions) -> RuntimeOptions:
    """Let the command line go before the file."""
    given = [KernelsFile(path) for path in options.kernels]
    given += [KernelsFile(path, isolate=True) for path in options.isolated_kernels]
    return replace(
        configured,
        devices=tuple(options.device) or configured.devices,
        policy=options.policy or configured.policy,
        jobs=options.jobs or configured.jobs,
        kernels=(*configured.kernels, *given),
        trace=options.trace or configured.trace,
        record=options.record or configured.record,
        metrics=options.metrics or configured.metrics,
    )


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _serve(options: RuntimeOptions, path: Path) -> int:
    ending = _Ending()
    faulthandler.enable()  # where a native kernel of the operator crashed
    faulthandler.register(signal.SIGUSR1)  # what every thread does: kill -USR1
    _allow_many_descriptors()
    runtime = Runtime(options, stop=lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        runtime.start()
        runtime.listen(path)
        _print_banner(runtime, path)
        gc.collect()
        gc.freeze()  # what is there now stays: no task waits while the collector looks at all of it
        ending.wait()
    except PolymuxError:
        runtime.close()
        raise
    print("polymux ends", flush=True)
    if not runtime.close():
        print("polymux: a kernel still ran and was left behind", file=sys.stderr, flush=True)
        os._exit(0)  # its thread cannot be ended in any other way
    return 0


class _Ending:
    """Waits for a signal that ends the server.

    Notes
    -----
    The signals are blocked in this thread and those that it starts, since libraries of drivers install handlers of
    their own. Threads that other libraries started as they were imported may still be given one: whoever is given it,
    its number comes through a pipe.
    """

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._install()

    def wait(self) -> None:
        """Return when one has come; a second one ends the process at once, whatever still runs."""
        self._install()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        while os.read(self._reader, 1)[0] not in ENDING:
            pass
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)

    def _install(self) -> None:
        for number in ENDING:
            signal.signal(number, lambda *_: None)


def _print_banner(runtime: Runtime, path: Path) -> None:
    console = Console(soft_wrap=True, highlight=False)
    parts = runtime.parts
    console.print(f"[bold]polymux[/bold] at {escape(str(path))}, policy {escape(parts.options.policy)}")
    for device in parts.machine.devices:
        memory = "shared memory" if device.memory == "host" else f"{size(device.memory_nbytes)} of its own"
        streams = f"{device.streams} stream" + ("s" if device.streams != 1 else "")
        console.print(
            f"  [green]{device.id}[/green]  {escape(device.name)}: {device.units} units, {streams}, {memory}"
        )
    for absent in parts.absent:
        console.print(f"  [dim]no {escape(absent.name)}: {escape(absent.reason)}[/dim]")
    if runtime.metrics_url is not None:
        console.print(f"  metrics at {escape(runtime.metrics_url)}")
    console.print(f"  {len(parts.directory.all())} kernels; Ctrl-C or 'polymux down' ends the server")
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()


def _allow_many_descriptors() -> None:
    """Raise the limit as far as it goes: each client takes several descriptors."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
