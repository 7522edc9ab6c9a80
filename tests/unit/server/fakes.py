"""A device, a segment and applications that keep their bytes where a test can look at them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.segment import SegmentError
from polymux.server.health import Health
from polymux.server.placement import Home, Owner, Want
from polymux.server.residency import Residency
from polymux.server.transfer import Transfer

Bytes = NDArray[np.uint8]


class FakeSegment:
    """Host memory of one session; knows which buffers live and where the server says they are."""

    def __init__(self, nbytes: int = 4096) -> None:
        self.bytes: Bytes = np.zeros(nbytes, np.uint8)
        self.generations: dict[int, int] = {}
        self.ranges: dict[int, tuple[int, int]] = {}
        self.tasks: list[list[tuple[int, int, int]]] = []
        self.locations: dict[tuple[int, int], int] = {}

    def view(self, offset: int, nbytes: int) -> Bytes:
        return self.bytes[offset : offset + nbytes]

    def buffer(self, slot: int, generation: int) -> tuple[int, int, int, tuple[int, ...]]:
        if self.generations.get(slot) != generation:
            raise SegmentError(f"buffer {slot} is not live")
        offset, nbytes = self.ranges[slot]
        return offset, nbytes, 0, (nbytes,)

    def pending_refs(self, index: int, limit: int) -> list[tuple[int, int, int]]:
        return [ref for task in self.tasks[:limit] for ref in task]

    def set_location(self, slot: int, generation: int, location: int) -> None:
        self.locations[slot, generation] = location


class FakeDevice:
    """A device with memory of its own; also the stream that copies."""

    def __init__(self, capacity_nbytes: int) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.live: dict[int, Bytes] = {}
        self.addressable = False
        self.peers: list[object] = []
        self.allocations = 0
        self.refusals = 0
        self.failures = 0

    @property
    def used_nbytes(self) -> int:
        return sum(memory.nbytes for memory in self.live.values())

    def allocate(self, nbytes: int) -> Bytes:
        if self.refusals:
            self.refusals -= 1
            raise MemoryError("the driver refuses")
        assert self.used_nbytes + nbytes <= self.capacity_nbytes, "the ledger let more in than fits"
        memory = np.zeros(nbytes, np.uint8)
        self.allocations += 1
        self.live[id(memory)] = memory
        return memory

    def free(self, memory: Bytes) -> None:
        del self.live[id(memory)]

    def host_bytes(self, memory: Bytes) -> Bytes | None:
        return memory if self.addressable else None

    def is_peer(self, other: object) -> bool:
        return other in self.peers

    def copy_in(self, memory: Bytes, host: Bytes, offset: int = 0) -> None:
        self._fail_if_asked()
        memory[offset : offset + host.nbytes] = host

    def copy_out(self, memory: Bytes, host: Bytes, offset: int = 0) -> None:
        self._fail_if_asked()
        host[:] = memory[offset : offset + host.nbytes]

    def copy_peer(self, memory: Bytes, peer: FakeDevice, source: Bytes, nbytes: int) -> None:
        self._fail_if_asked()
        peer._fail_if_asked()
        assert self.is_peer(peer)
        memory[:nbytes] = source[:nbytes]

    def _fail_if_asked(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the driver fails")


class Application:
    """A session with buffers of given sizes, one after the other in its segment."""

    def __init__(self, session: int, sizes: list[int]) -> None:
        self.owner = Owner(session, f"'app{session}' (session {session})")
        self.segment = FakeSegment(sum(sizes))
        self.sizes = sizes
        self.offsets = [sum(sizes[:slot]) for slot in range(len(sizes))]
        for slot in range(len(sizes)):
            self.segment.generations[slot] = 0
            self.segment.ranges[slot] = self.offsets[slot], sizes[slot]

    def home(self, slot: int) -> Home:
        generation = self.segment.generations[slot]
        return Home(self.owner, self.segment, slot, generation, self.offsets[slot])

    def want(self, slot: int, access: int = 1) -> Want:
        return Want(self.home(slot), self.sizes[slot], access)

    def content(self, slot: int) -> Bytes:
        return self.segment.view(self.offsets[slot], self.sizes[slot])

    def location(self, slot: int) -> int:
        return self.segment.locations.get((slot, self.segment.generations[slot]), 0)


class Robust(Health):
    """That of a device which is never given up."""

    def failed(self, message: str) -> None:
        pass


class Machine:
    """A residency map over fake devices, and what it reported."""

    def __init__(self, *capacities: int) -> None:
        self.transfers: list[Transfer] = []
        self.residency = Residency(self.transfers.append)
        self.devices: dict[int, Any] = {}
        self.health: dict[int, Health] = {}
        for location, capacity in enumerate(capacities, start=1):
            device = FakeDevice(capacity)
            self.devices[location] = device
            self.health[location] = Robust()
            self.residency.add_device(
                location, f"fake:{location - 1}", device, device, capacity, self.health[location]
            )
