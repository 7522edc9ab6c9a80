"""The queues of a model: one on each stream whose share it can run on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from polymux.core.errors import PolymuxError
from polymux.core.ids import DeviceId, StreamId
from polymux.serving.scheduling.machine import Block, Machine
from polymux.serving.scheduling.merging import Deliver, Lane, Tensors

__all__ = ["Instances", "Lanes", "OpenLane"]

_log = logging.getLogger(__name__)

OpenLane = Callable[[StreamId], Lane]
"""Opens a queue on a stream and loads the model there; takes as long as that takes, in a thread."""


class Instances(Protocol):
    """What runs a model's batches."""

    async def run(
        self,
        device: DeviceId,
        block: Block,
        requests: Sequence[Tensors],
        deliver: Deliver,
    ) -> PolymuxError | None:
        """Run a batch on a block; see `polymux.serving.scheduling.merging.run_together`."""

    async def prepare(self, device: DeviceId, units: int) -> None:
        """Make the model able to run on shares of so many units; raises `PolymuxError` if it cannot be."""

    def retire(self, device: DeviceId, units: int) -> None:
        """Let go of what `prepare` made."""

    def close(self) -> None:
        """Let go of everything."""


class Lanes:
    """A model's instances on the shares of the machine.

    Parameters
    ----------
    machine : Machine
        The devices with their streams.
    open_lane : callable
        Makes an instance.

    Notes
    -----
    Used by one event loop; the work of opening is done by threads. What is opened runs beside what is there already:
    the model goes on being served on its other shares (active and standby instance).
    """

    def __init__(self, machine: Machine, open_lane: OpenLane) -> None:
        self._machine = machine
        self._open_lane = open_lane
        self._lanes: dict[StreamId, Lane] = {}
        self._used: set[StreamId] = set()
        self._leaving: set[StreamId] = set()
        self._opening: dict[tuple[DeviceId, int], asyncio.Task[None]] = {}

    async def prepare(self, device: DeviceId, units: int) -> None:
        """Make the model able to run on all blocks of so many units of a device.

        Raises
        ------
        PolymuxError
            If the model cannot be loaded there.
        """
        key = (device, units)
        if key not in self._opening:
            self._opening[key] = asyncio.create_task(self._open(device, units))
            self._opening[key].add_done_callback(lambda _: self._opening.pop(key, None))
        await asyncio.shield(self._opening[key])

    def retire(self, device: DeviceId, units: int) -> None:
        """Let go of the instances on shares of so many units; one that is in use goes when its batch ends."""
        for block in self._machine.blocks(device, units):
            stream = self._machine.streams[device, block]
            self._leaving.add(stream)
            self._drop_leaving(stream)

    @contextmanager
    def using(self, device: DeviceId, block: Block) -> Iterator[Lane]:
        """Have the instance on a block for one batch.

        Raises
        ------
        PolymuxError
            If there is none.
        """
        stream = self._machine.streams[device, block]
        lane = self._lanes.get(stream)
        if lane is None:
            raise PolymuxError(f"the model has no instance on stream {stream}; send the request again")
        self._used.add(stream)
        try:
            yield lane
        finally:
            self._used.discard(stream)
            self._drop_leaving(stream)

    def close(self) -> None:
        """Let go of all instances at once."""
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.close()

    async def _open(self, device: DeviceId, units: int) -> None:
        for block in self._machine.blocks(device, units):
            stream = self._machine.streams[device, block]
            if stream not in self._lanes:
                self._lanes[stream] = await asyncio.to_thread(self._open_lane, stream)
            self._leaving.discard(stream)

    def _drop_leaving(self, stream: StreamId) -> None:
        if stream in self._leaving and stream not in self._used:
            self._leaving.discard(stream)
            lane = self._lanes.pop(stream, None)
            if lane is not None:
                closing = asyncio.get_running_loop().run_in_executor(None, lane.close)
                closing.add_done_callback(_report)


def _report(closing: asyncio.Future[None]) -> None:
    if not closing.cancelled() and (error := closing.exception()) is not None:
        _log.warning("an instance of a model was not closed: %s", error)
