"""The whole front end: models from a directory, HTTP on a socket, tasks to the core."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvloop

from polymux.client import Client
from polymux.inputs import SharedStore, StagePool
from polymux.metrics.exposition import Metrics
from polymux.serving.cutting import Cutter, PartitionChoice
from polymux.serving.http_app import HttpApp
from polymux.serving.http_door import Door
from polymux.serving.http_server import BACKLOG, bind, serve_http
from polymux.serving.lifecycle import Lifecycle
from polymux.serving.limits import Limits
from polymux.serving.loader import DirectLoader, Loader
from polymux.serving.models import Models
from polymux.serving.scheduling.loading import ScheduledLoader
from polymux.serving.scheduling.machine import claim, claiming
from polymux.serving.scheduling.settings import SchedulingOptions
from polymux.serving.scheduling.statistics import Statistics
from polymux.serving.short_waits import prefer_short_waits
from polymux.serving.stages.loader import StagedLoader
from polymux.serving.stages.metrics import StageMetrics
from polymux.serving.stages.settings import StageOptions

__all__ = ["ServeOptions", "serve"]

_log = logging.getLogger(__name__)

_OTHER_DESCRIPTORS = 2048
"""Kept for what is no connection, and for surplus connections."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What a front end serves, and where.

    Attributes
    ----------
    repository : pathlib.Path
        Directory of the models.
    host : str
        Address to listen on.
    port : int
        Port to listen on; 0: any free one.
    device : str or None
        Device for all models; None: the server's choice.
    scheduling : SchedulingOptions or None
        How requests are scheduled; None: each model has a queue, in the order of arrival.
    partition : sequence of PartitionChoice
        Which models are cut into parts.
    limits : Limits
        Bounds of a request.
    stages : StageOptions
        How input stages run.
    """

    repository: Path
    host: str = "127.0.0.1"
    port: int = 8000
    device: str | None = None
    scheduling: SchedulingOptions | None = None
    partition: Sequence[PartitionChoice] = ()
    limits: Limits = field(default_factory=Limits)
    stages: StageOptions = field(default_factory=StageOptions)


def serve(
    options: ServeOptions,
    client: Client,
    reconnect: Callable[[], Client],
    listening: Callable[[str, int], None],
) -> None:
    """Serve until SIGINT or SIGTERM; call it in the main thread.

    Parameters
    ----------
    options : ServeOptions
        What to serve, and where.
    client : Client
        Connection to the core; closed in the end.
    reconnect : callable
        Connects again to a server that went away.
    listening : callable
        Called with host and port as soon as connections are taken.

    Raises
    ------
    NotADirectoryError
        When the repository is no directory.
    InvalidRequest
        When options name a model that is not in it, or another front end schedules on a device that this
        one is to use.
    OSError
        When the address cannot be had.
    """
    models = Models()
    statistics = Statistics()
    cutter = Cutter(options.partition)
    loader: Loader = DirectLoader(options.device, cutter)
    if options.scheduling is not None:
        loader = ScheduledLoader(options.scheduling, options.device, statistics, cutter)
        reconnect = claiming(reconnect, options.device)
    pool = StagePool(options.stages.threads, store=SharedStore())
    loader = StagedLoader(loader, pool, options.stages, options.scheduling)
    lifecycle = Lifecycle(options.repository, models, client, reconnect, loader)
    try:
        cutter.check_models(lifecycle.names())
        if options.scheduling is not None:
            options.scheduling.check_models(lifecycle.names())
            claim(client, options.device)
        limits = _possible(options.limits)
        door = Door(limits)
        counted = (door, StageMetrics(pool))
        collectors = counted if options.scheduling is None else (*counted, statistics)
        listener = bind(options.host, options.port)
        app = HttpApp(models, limits, Metrics(lifecycle.status, collectors=collectors))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(app, limits, listener, door, lifecycle, listening))
    finally:
        pool.close()
        lifecycle.close()
        cutter.close()


async def _run(
    app: HttpApp,
    limits: Limits,
    listener: socket.socket,
    door: Door,
    lifecycle: Lifecycle,
    listening: Callable[[str, int], None],
) -> None:
    loading = asyncio.create_task(lifecycle.run())
    loading.add_done_callback(_report)
    if slice_ns := prefer_short_waits():
        _log.info("the event loop has slices of %d us, so that it waits shortly for a core", slice_ns // 1000)
    else:
        _log.info(
            "the kernel gives no short slices (Linux 6.12 does): the event loop waits for a core as others do"
        )
    host, port = listener.getsockname()[:2]
    gc.collect()
    gc.freeze()  # what is there now stays: no request waits while the collector looks at all of it
    listener.listen(BACKLOG)
    listening(host, port)
    await serve_http(app, limits, listener, door)
    loading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await loading


def _report(loading: asyncio.Task[None]) -> None:
    if not loading.cancelled() and (error := loading.exception()) is not None:
        _log.critical("the models are no longer looked after", exc_info=error)


def _possible(limits: Limits) -> Limits:
    """Have as many descriptors as the operating system allows, and no more connections than they suffice for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # then what there is has to do
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return limits
    connections = min(limits.connections, max(soft // 2, soft - _OTHER_DESCRIPTORS))
    surplus = min(limits.surplus_connections, max(1, (soft - connections) // 4))
    if connections < limits.connections:
        _log.warning(
            "%d connections at most, not %d: the process may have %d descriptors (ulimit -n)",
            connections, limits.connections, soft,
        )  # fmt: skip
    return replace(limits, connections=connections, surplus_connections=surplus)
