"""Copies between two devices' memories without a runtime: what a migration is compared with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from polymux.core.device_spec import Share
from polymux.core.errors import PolymuxError
from polymux.device.protocol import Device, Stream
from polymux.device.registry import close_all, discover

WARM_UPS = 2


class BareCopies:
    """Two devices, one buffer of the same size in the memory of each, and a stream that copies into it.

    Parameters
    ----------
    requests : sequence of str
        Two devices as ``polymux up --device`` takes them.

    Notes
    -----
    The copy calls are those that the runtime makes for the same devices. The memory of a device that works on the
    host's is an array.
    """

    def __init__(self, requests: Sequence[str]) -> None:
        self._devices: list[Device] = discover(list(requests))[0]
        if len(self._devices) != len(requests):
            close_all(self._devices)
            raise PolymuxError(f"{', '.join(requests)} are {len(self._devices)} devices here")
        self._streams: list[Stream] = [device.open_stream(Share()) for device in self._devices]

    def measure(self, nbytes: int, rounds: int) -> list[float]:
        """Copy to and fro; return the milliseconds of a copy into each device: median, memory warm."""
        memories = [self._allocate(device, nbytes) for device in self._devices]
        times: tuple[list[float], ...] = ([], [])
        cores = os.sched_getaffinity(0)
        try:
            for turn in range(WARM_UPS + rounds):
                for to in (1, 0):
                    self._streams[to].bind_thread()
                    start = perf_counter_ns()
                    self._copy(memories, 1 - to, to, nbytes)
                    if turn >= WARM_UPS:
                        times[to].append((perf_counter_ns() - start) / 1e6)
        finally:
            os.sched_setaffinity(0, cores)
            for device, memory in zip(self._devices, memories, strict=True):
                if device.spec.memory == "own":
                    device.free(memory)
        return [median(series) for series in times]

    def close(self) -> None:
        """Close the devices."""
        close_all(self._devices)

    def _allocate(self, device: Device, nbytes: int) -> Any:
        if device.spec.memory == "own":
            return device.allocate(nbytes)
        return np.full(nbytes, 1, np.uint8)

    def _bytes(self, at: int, memory: Any) -> npt.NDArray[np.uint8] | None:
        device = self._devices[at]
        return device.host_bytes(memory) if device.spec.memory == "own" else memory

    def _copy(self, memories: Sequence[Any], source: int, to: int, nbytes: int) -> None:
        own = [device.spec.memory == "own" for device in self._devices]
        if all(own) and self._devices[to].is_peer(self._devices[source]):
            self._streams[to].copy_peer(memories[to], self._devices[source], memories[source], nbytes)
            return
        from_bytes, to_bytes = self._bytes(source, memories[source]), self._bytes(to, memories[to])
        if own[to] and from_bytes is not None:
            self._streams[to].copy_in(memories[to], from_bytes[:nbytes])
        elif to_bytes is not None:
            self._streams[source].copy_out(memories[source], to_bytes[:nbytes])
        else:
            staging = np.empty(nbytes, np.uint8)
            self._streams[source].copy_out(memories[source], staging)
            self._streams[to].copy_in(memories[to], staging)
