"""Copies between a device's own memory and the segments, with the time that they took."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from polymux.segment import SegmentError
from polymux.server.placement import Allocator, Copier, Placement, Want


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy between host and device.

    Parameters
    ----------
    into : bool
        Host to device; False: device to host.
    location, device
        Number and name of the device's memory.
    queue : str
        For whose task it was made.
    owner : str
        Whose buffer it was.
    nbytes : int
    start_ns, end_ns : int
        CLOCK_MONOTONIC.
    """

    into: bool
    location: int
    device: str
    queue: str
    owner: str
    nbytes: int
    start_ns: int
    end_ns: int


Observer = Callable[[Transfer], None]


class DeviceMemory:
    """One device's own memory: allocation, and a stream for copies that other devices' threads need.

    Notes
    -----
    The copier is a stream of its own. It is used by one thread at a time, not by one thread only.
    """

    def __init__(
        self, location: int, name: str, device: Allocator, copier: Copier, observe: Observer
    ) -> None:
        self.location = location
        self.name = name
        self.device = device
        self._copier = copier
        self._copying = threading.Lock()
        self._observe = observe

    def bring_in(self, placement: Placement, want: Want, read: bool, stream: Copier | None) -> Any:
        """Allocate device memory and, when the task reads it, fill it from the host.

        Raises
        ------
        MemoryError
            The device refuses; nothing is allocated.
        """
        memory = self.device.allocate(placement.nbytes)
        if not read:
            return memory
        try:
            host = want.home.memory.view(want.home.offset, placement.nbytes)
            self._timed(True, placement, lambda copier: copier.copy_in(memory, host), stream)
        except BaseException:
            self.device.free(memory)
            raise
        return memory

    def bring_out(self, placement: Placement, stream: Copier | None) -> int:
        """Copy a buffer to the host unless the host's bytes are the same or nobody can see them.

        Returns
        -------
        int
            Bytes copied.
        """
        if placement.host_clean:
            return 0
        for home in list(placement.homes):
            try:
                home.memory.buffer(home.slot, home.generation)
                host = home.memory.view(home.offset, placement.nbytes)
            except SegmentError:
                continue  # freed meanwhile: its bytes of the segment may be another buffer's by now
            memory = placement.memory
            self._timed(False, placement, lambda copier: copier.copy_out(memory, host), stream)  # noqa: B023
            return placement.nbytes
        return 0

    def _timed(
        self, into: bool, placement: Placement, copy: Callable[[Copier], None], stream: Copier | None
    ) -> None:
        start_ns = monotonic_ns()
        if stream is not None:
            copy(stream)
        else:
            with self._copying:
                copy(self._copier)
        self._observe(
            Transfer(
                into,
                self.location,
                self.name,
                placement.queue,
                placement.owner,
                placement.nbytes,
                start_ns,
                monotonic_ns(),
            )
        )
