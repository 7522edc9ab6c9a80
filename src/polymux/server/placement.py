"""Where buffers are: the values that the residency map is made of."""

from __future__ import annotations

import weakref
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
    """What copies between one device's memory and others: a stream of that device."""

    def copy_in(self, memory: Any, host: Bytes, offset: int = 0) -> None:
        """Copy host to device; complete on return."""

    def copy_out(self, memory: Any, host: Bytes, offset: int = 0) -> None:
        """Copy device to host; complete on return."""

    def copy_peer(self, memory: Any, peer: Any, source: Any, nbytes: int) -> None:
        """Copy from the memory of a device that is a peer; complete on return."""


class Allocator(Protocol):
    """What a device with its own memory offers; usable from any thread."""

    def allocate(self, nbytes: int) -> Any:
        """Take device memory; `MemoryError` when there is none."""

    def free(self, memory: Any) -> None:
        """Give it back."""

    def host_bytes(self, memory: Any) -> Bytes | None:
        """Its bytes, where the host can address them."""

    def is_peer(self, other: Any) -> bool:
        """Whether this device's streams copy straight from the other one's memory."""


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
class Copy:
    """Bytes of one memory that hold a buffer's content, or held it.

    Notes
    -----
    The host's copy always exists. A device's that is stale keeps its memory, so that the buffer can come back without
    allocating and touching it anew; it is the first to go when memory is short.
    """

    placement: Placement
    location: int
    memory: Any = None
    valid: bool = False
    pins: int = 0
    """Running tasks that use it, and copies under way that read it."""
    busy: bool = False
    """Whether it is being filled, or leaves."""
    held_for: str = ""
    """The queue that will need it soon: it is taken from that one only when a task would have to wait otherwise."""

    @property
    def idle(self) -> bool:
        """Whether its memory can be taken away."""
        return not self.busy and self.pins == 0


class Placement:
    """One buffer that is, or was, away from home: where its content is valid (as in the MSI protocol).

    Parameters
    ----------
    nbytes : int
    homes : list of Home
    """

    __slots__ = (
        "__weakref__",
        "copies",
        "freed_by",
        "gone",
        "gone_from",
        "homes",
        "host_reads",
        "kept_at",
        "last",
        "lent",
        "nbytes",
        "queue",
        "read_by_copies",
        "shared",
        "told",
        "transfers",
        "version",
        "writers",
        "written_at",
    )

    def __init__(self, nbytes: int, homes: list[Home]) -> None:
        self.nbytes = nbytes
        self.homes = homes
        itself: Placement = weakref.proxy(self)  # no cycle: what is forgotten gives its segment back at once
        self.copies: dict[int, Copy] = {HOST: Copy(itself, HOST, valid=True)}
        self.last = HOST
        """Where it was used last."""
        self.told = HOST
        """What clients and workers believe of `where`."""
        self.lent = HOST
        """A device to which it is being copied ahead: tasks on the host must ask from then on."""
        self.version = 0
        """How often somebody began to write it."""
        self.kept_at: list[int] = []
        """Where it is held for tasks that will use it without asking."""
        self.writers = 0
        """Running tasks that write it, all at one place."""
        self.written_at = HOST
        self.transfers = 0
        """Copies of it under way."""
        self.read_by_copies = 0
        """Those of them that must not see it change: all but the ones made ahead."""
        self.host_reads = 0
        """Tasks that read it on the host since a device had it."""
        self.gone = ""
        """Why no copy is valid: the device that had the only one was lost; empty: one is."""
        self.gone_from = HOST
        self.shared = False
        self.freed_by = -1
        """The session whose it was, once nobody can name it any more."""
        self.queue = ""
        """The queue that used it last."""

    @property
    def dead(self) -> bool:
        """Whether nobody can name it any more; its device memory goes when the last task lets go."""
        return not self.homes

    @property
    def busy(self) -> bool:
        """Whether a task or a copy uses it now."""
        return self.transfers > 0 or any(copy.pins or copy.busy for copy in self.copies.values())

    @property
    def owner(self) -> str:
        """Who it belongs to, for people."""
        return self.homes[0].owner.name if self.homes else "an application that has ended"

    @property
    def where(self) -> int:
        """The device that has the valid copy, the one that had it last of several; 0: only the host has it."""
        if self.last != HOST and self._valid_at(self.last):
            return self.last
        found = next((at for at, copy in self.copies.items() if at != HOST and copy.valid), HOST)
        return found or self.lent or self.gone_from

    def is_sole(self, copy: Copy) -> bool:
        """Whether no other copy is valid."""
        return copy.valid and not any(other.valid for other in self.copies.values() if other is not copy)

    def _valid_at(self, location: int) -> bool:
        copy = self.copies.get(location)
        return copy is not None and copy.valid


@dataclass(slots=True, eq=False)
class Fill:
    """Bytes that have to come to a place."""

    placement: Placement
    want: Want
    copy: Copy
    """Where they are needed; without memory yet if that has to be allocated."""
    source: Copy | None
    """Where they are copied from; None: nothing is read there, memory is all that is needed."""
    staged: bool = False
    """Whether the copy may have to go through the host's bytes of the buffer."""
    version: int = 0
    """Of the content when the copy began."""


@dataclass(slots=True, eq=False)
class Plan:
    """What has to be done so that a task finds all of its buffers at one place."""

    location: int
    queue: str = ""
    ahead: bool = False
    """Whether no task waits for it: whoever writes a buffer meanwhile may, and the copy is then stale."""
    leased: list[tuple[Placement, Want]] = field(default_factory=list)
    """In the order of the wants."""
    drops: list[Copy] = field(default_factory=list)
    """Memory of the place that is taken away without a copy."""
    spills: list[Copy] = field(default_factory=list)
    """The only valid copies of buffers, which go to the host to make room."""
    fills: list[Fill] = field(default_factory=list)
    reserved_nbytes: int = 0
    """Memory of the place that is free and kept for the fills."""
    keeps: bool = False
    """Whether its buffers are held for further tasks, which will not ask."""

    def keep(self) -> None:
        """Hold its buffers for further tasks: nobody writes them elsewhere until they are let go of."""
        self.keeps = True
        for placement, _ in self.leased:
            placement.kept_at.append(self.location)

    def let_go(self) -> None:
        """End `keep`, if it was called."""
        if self.keeps:
            for placement, _ in self.leased:
                placement.kept_at.remove(self.location)


@dataclass(slots=True)
class Lease:
    """Buffers held at one place for one running task."""

    location: int
    placements: Sequence[Placement]
    wants: Sequence[Want]
    moved_nbytes: int = 0
    """Bytes that were copied to get them there."""
    keeps: bool = False
    """Whether they are held for further tasks."""

    @classmethod
    def of(cls, plan: Plan, moved_nbytes: int) -> Lease:
        """Make the lease of a plan that has been carried out."""
        placements, wants = [pair[0] for pair in plan.leased], [pair[1] for pair in plan.leased]
        return cls(plan.location, placements, wants, moved_nbytes, plan.keeps)

    def memory(self, slot: int) -> Any:
        """Give the device memory of one of the leased buffers."""
        for placement, want in zip(self.placements, self.wants, strict=True):
            if want.home.slot == slot:
                return placement.copies[self.location].memory
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
