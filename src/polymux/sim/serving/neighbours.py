"""Batches that run beside each other on a device: they slow each other down for as long as they do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from polymux.core.ids import DeviceId
from polymux.core.serving.decision import Dispatch
from polymux.core.serving.model import BatchId, ServingDevice
from polymux.perfmodel.interference import Interference


@dataclass(slots=True)
class Progress:
    """A batch, the time that it would still take alone as of `since_ns`, and how many times longer it takes now."""

    dispatch: Dispatch
    left_ns: float
    since_ns: int
    slowdown: float = 1.0


class Neighbours:
    """What runs beside what, and when it ends.

    Parameters
    ----------
    interference : Interference
    devices : tuple of ServingDevice
    """

    def __init__(self, interference: Interference, devices: tuple[ServingDevice, ...]) -> None:
        self._interference = interference
        self._units = {device.id: device.units for device in devices}
        self._running: dict[DeviceId, dict[BatchId, Progress]] = {device.id: {} for device in devices}

    def start(self, dispatch: Dispatch, alone_ns: int, now: int) -> list[tuple[BatchId, int]]:
        """Note a batch that takes `alone_ns` without neighbours; return when each batch of the device ends by now."""
        running = self._running[dispatch.device]
        running[dispatch.batch] = Progress(dispatch, alone_ns, now)
        return self.renew(dispatch.device, now)

    def end(self, dispatch: Dispatch, now: int) -> list[tuple[BatchId, int]]:
        """Note that a batch ended, or will not start; return when each other batch of the device ends by now."""
        self._running[dispatch.device].pop(dispatch.batch, None)
        return self.renew(dispatch.device, now)

    def renew(self, device: DeviceId, now: int) -> list[tuple[BatchId, int]]:
        """Take over what has changed; return when each batch of the device ends by now."""
        running = self._running[device]
        ends = []
        for batch, progress in running.items():
            progress.left_ns = max(0.0, progress.left_ns - (now - progress.since_ns) / progress.slowdown)
            progress.since_ns = now
            progress.slowdown = self._slowdown(running, progress)
            ends.append((batch, now + math.ceil(progress.left_ns * progress.slowdown)))
        return ends

    def _slowdown(self, running: Mapping[BatchId, Progress], progress: Progress) -> float:
        """Time of a batch over its time alone, with what runs on its device now."""
        dispatch = progress.dispatch
        units = self._units[dispatch.device]
        beside = [(p.dispatch.model, p.dispatch.units / units) for p in running.values() if p is not progress]
        return self._interference.slowdown(dispatch.model, beside)
