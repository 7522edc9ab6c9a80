"""Where buffers are: the values that the residency map is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

HOST = 0
"""The location of host memory, that is of the segment; device memories are 1, 2, 3 ..."""

READ, WRITE = 1, 2

Bytes = NDArray[np.uint8]


class HostMemory(Protocol):
    """What residency needs of a `polymux.segment.Segment`."""

    def view(self, offset: int, nbytes: int) -> Bytes:
        """Give bytes of the segment, without copy."""

    def buffer(self, slot: int, generation: int) -> Any:
        """Describe a live buffer; `SegmentError` when the slot holds another one by now."""

    def set_location(self, slot: int, generation: int, location: int) -> None:
        """Tell workers and the client where the valid copy is."""


class Copier(Protocol):
    """What copies between one device's memory and the host: a stream of that device."""

    def copy_in(self, memory: Any, host: Bytes) -> None:
        """Copy host to device; complete on return."""

    def copy_out(self, memory: Any, host: Bytes) -> None:
        """Copy device to host; complete on return."""


class Allocator(Protocol):
    """What a device with its own memory offers; usable from any thread."""

    def allocate(self, nbytes: int) -> Any:
        """Take device memory; `MemoryError` when there is none."""

    def free(self, memory: Any) -> None:
        """Give it back."""


@dataclass(slots=True, eq=False)
class Owner:
    """Whose buffers they are: one for each session, shared by all of its homes."""

    session: int
    name: str
    """For people: the application's name and its session."""
    ended: bool = False


class Key(NamedTuple):
    """A place for a buffer: whose segment and which slot of it."""

    session: int
    slot: int


@dataclass(frozen=True, slots=True)
class Home:
    """The bytes of one segment that belong to a buffer; a shared buffer has several, with the same pages."""

    owner: Owner
    memory: HostMemory
    slot: int
    generation: int
    """Which life of the slot."""
    offset: int

    @property
    def key(self) -> Key:
        """Where it is looked up."""
        return Key(self.owner.session, self.slot)


@dataclass(slots=True)
class Want:
    """One buffer that a task needs at one place."""

    home: Home
    nbytes: int
    access: int


@dataclass(slots=True, eq=False)
class Placement:
    """One buffer that is, or was, away from home."""

    nbytes: int
    homes: list[Home]
    location: int = HOST
    memory: Any = None
    host_clean: bool = True
    """Whether the host's bytes still equal the device's, so that going home costs no copy."""
    pins: int = 0
    """Running tasks that use the device memory."""
    moving: bool = False
    shared: bool = False
    queue: str = ""
    """The queue that used it last."""

    @property
    def dead(self) -> bool:
        """Whether nobody can name it any more; its device memory goes when the last task lets go."""
        return not self.homes

    @property
    def busy(self) -> bool:
        """Whether a task or a copy uses it now."""
        return self.moving or self.pins > 0

    @property
    def owner(self) -> str:
        """Who it belongs to, for people."""
        return self.homes[0].owner.name if self.homes else "an application that has ended"


@dataclass(slots=True)
class Plan:
    """What has to be done so that a task finds all of its buffers at one place."""

    location: int
    pinned: list[Placement] = field(default_factory=list)
    """At the place, or on their way there; in the order of the wants."""
    outgoing: list[Placement] = field(default_factory=list)
    """Leave their memory for the host: victims of spilling, and those that come from another device."""
    incoming: list[tuple[Placement, Want]] = field(default_factory=list)
    """Enter the place from the host."""
    reserved_nbytes: int = 0
    """Memory of the place that is free and kept for the incoming ones."""


@dataclass(slots=True)
class Lease:
    """Buffers held at one place for one running task."""

    location: int
    placements: Sequence[Placement]
    wants: Sequence[Want]
    moved_nbytes: int = 0
    """Bytes that were copied to get them there."""

    def memory(self, slot: int) -> Any:
        """Give the device memory of one of the leased buffers."""
        for placement, want in zip(self.placements, self.wants, strict=True):
            if want.home.slot == slot:
                return placement.memory
        raise KeyError(slot)


def merged(wants: Sequence[Want]) -> list[Want]:
    """Make one want per buffer, the accesses of repeated ones united."""
    by_key: dict[Key, Want] = {}
    for want in wants:
        known = by_key.get(want.home.key)
        if known is None:
            by_key[want.home.key] = Want(want.home, want.nbytes, want.access)
        else:
            known.access |= want.access
    return list(by_key.values())
