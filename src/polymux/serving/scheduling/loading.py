"""Brings models to the scheduler: their settings, profiles, and instances on the machine's shares."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polymux.client import Buffer, Client
from polymux.core.dtype import DType
from polymux.core.errors import PolymuxError
from polymux.core.ids import DeviceId, StreamId
from polymux.core.serving.model import ModelName, ServedModel
from polymux.perfmodel.surface import TableSurface
from polymux.serving.cutting import Cutter
from polymux.serving.errors import ModelLoadError
from polymux.serving.heavy_layers import HeavyLayers
from polymux.serving.kernel_runner import KernelRunner
from polymux.serving.model_config_pb2 import ModelConfig
from polymux.serving.models import LoadedModel
from polymux.serving.output_sizes import OutputSizes
from polymux.serving.registered_model import RegisteredModel, register_model
from polymux.serving.scheduling.lanes import Lanes
from polymux.serving.scheduling.machine import Block, Machine, first_share, read_machine
from polymux.serving.scheduling.merging import Deliver, Lane, Tensors, run_together
from polymux.serving.scheduling.room import Room
from polymux.serving.scheduling.runner import ScheduledRunner
from polymux.serving.scheduling.scheduler import Scheduler
from polymux.serving.scheduling.settings import ModelSettings, SchedulingOptions, settings_of
from polymux.serving.scheduling.statistics import Statistics
from polymux.serving.scheduling.surfaces import read_surfaces

__all__ = ["ScheduledLoader"]

_log = logging.getLogger(__name__)

_INPUTS = 0.6
"""Part of the segment that the inputs of waiting requests may take; the rest is for batches and outputs."""


class ScheduledLoader:
    """A `Loader` whose models share a scheduler, a new one for each connection to a server.

    Parameters
    ----------
    options : SchedulingOptions
    device : str or None
        The one device to use; None: all that run ONNX models.
    statistics : Statistics
        Is told what happens to requests.
    cutter : Cutter, optional
        Cuts models into parts; None: none is cut.
    """

    scheduled = True

    def __init__(
        self,
        options: SchedulingOptions,
        device: str | None,
        statistics: Statistics,
        cutter: Cutter | None = None,
    ) -> None:
        self._options = options
        self._device = device
        self._statistics = statistics
        self._cutter = cutter or Cutter()
        self._heavy = HeavyLayers()
        self._scheduler: Scheduler | None = None
        self._machine = Machine((), {})
        self._room = Room(0)

    async def load(
        self, client: Client, name: str, version: int, path: Path, config: ModelConfig
    ) -> LoadedModel:
        """Load one version of a model; see `Loader.load`."""
        try:
            scheduler = self._scheduler or await self._begin(client)
            settings = settings_of(name, config, self._options)
            plain = path
            if (apart := await asyncio.to_thread(self._heavy.look, path)) is not None:
                _log.info("model %s: its heavy layers run on its share, since requests are scheduled", name)
                plain = apart.path
            model = await asyncio.to_thread(register_model, client, name, version, plain, config)
            model = await asyncio.to_thread(self._cutter.cut, client, name, model, plain)
            surfaces = await asyncio.to_thread(self._surfaces, path, settings.max_batch)
            served = ServedModel(
                ModelName(f"{name}/{version}"),
                settings.slo_ns,
                surfaces,
                settings.weight,
                settings.priority,
                max_batch=settings.max_batch,
            )
            batched = model.signature.max_batch_size > 0
            instances = _Instances(client, model, batched, self._machine)
            await scheduler.add(served, instances, self._first_shares(served))
        except PolymuxError as error:
            raise error if isinstance(error, ModelLoadError) else ModelLoadError(str(error)) from error
        _log.info("model %s: %s", served.name, _described(served, settings))
        room = self._room.add(settings.max_waiting)
        return model.loaded(ScheduledRunner(scheduler, served.name, settings, batched, _Memory(client), room))

    def let_go(self) -> None:
        """Fail what waits, and forget the scheduler."""
        if self._scheduler is not None:
            self._scheduler.close()
            self._scheduler = None
        self._heavy.close()

    async def _begin(self, client: Client) -> Scheduler:
        self._machine = read_machine(await asyncio.to_thread(client.status), self._device)
        self._room = Room(int(_INPUTS * client.segment_nbytes))
        self._scheduler = Scheduler(self._machine, self._options.policy, self._statistics)
        return self._scheduler

    def _surfaces(self, path: Path, max_batch: int) -> Mapping[str, TableSurface]:
        kinds = [device.kind for device in self._machine.devices]
        surfaces = read_surfaces(self._options.profiles, path, kinds)
        return {kind: replace(surface, limit=max_batch) for kind, surface in surfaces.items()}

    def _first_shares(self, model: ServedModel) -> dict[DeviceId, Sequence[int]]:
        """Where it is profiled, all shares of a device; else the one that an unknown model begins with."""
        return {
            device.id: device.shares if device.kind in model.surfaces else (first_share(device),)
            for device in self._machine.devices
        }


class _Instances:
    """A model's instances on the core; see `polymux.serving.scheduling.lanes.Instances`."""

    def __init__(self, client: Client, model: RegisteredModel, batched: bool, machine: Machine) -> None:
        self._client = client
        self._model = model
        self._batched = batched
        self._dtypes = [param.dtypes[0] for param in model.spec.inputs]
        self._sizes = OutputSizes(model.spec.outputs)
        self._lanes = Lanes(machine, self._open)
        self.prepare = self._lanes.prepare
        self.retire = self._lanes.retire
        self.close = self._lanes.close

    async def run(
        self, device: DeviceId, block: Block, requests: Sequence[Tensors], deliver: Deliver
    ) -> PolymuxError | None:
        """Run a batch."""
        with self._lanes.using(device, block) as lane:
            return await run_together(lane, self._dtypes, requests, self._batched, deliver)

    def _open(self, stream: StreamId) -> Lane:
        return _Instance(self._client, self._model, stream, self._sizes)


class _Instance:
    """A model that is loaded on a stream, which goes on with other models meanwhile."""

    def __init__(self, client: Client, model: RegisteredModel, stream: StreamId, sizes: OutputSizes) -> None:
        self._client = client
        self._stream = stream
        self._kernels = [part.name for part in model.parts] or [model.spec.name]
        with contextlib.ExitStack() as made:
            for kernel in self._kernels:
                client.prepare(kernel, stream)
                made.callback(self._retire, kernel)
            self._runner = KernelRunner(client, model.spec, stream=stream, parts=model.parts, sizes=sizes)
            made.callback(self._runner.close)
            self._runner.warm_up()
            made.pop_all()  # until `close`
        self.allocate = self._runner.allocate
        self.run = self._runner.run

    def close(self) -> None:
        """Close the queue, and have the stream let go of the model."""
        self._runner.close()
        for kernel in self._kernels:
            self._retire(kernel)

    def _retire(self, kernel: str) -> None:
        with contextlib.suppress(PolymuxError):  # the model or the connection is gone already
            self._client.retire(kernel, self._stream)


class _Memory:
    """Memory for inputs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """Return a buffer of the segment."""
        return Buffer(self._client, int(dtype), list(shape), False)


def _described(model: ServedModel, settings: ModelSettings) -> str:
    text = f"slo {settings.slo_ns / 1e6:g} ms, weight {settings.weight}, priority {settings.priority}, "
    text += f"batches of up to {settings.max_batch}"
    return text if model.surfaces else f"{text}; not profiled (polymux profile makes its profile)"
