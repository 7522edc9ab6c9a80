"""Which copies and evictions put a task's buffers at one place: pure, over the values of `placement`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from polymux.core.errors import PolymuxError
from polymux.server.placement import HOST, READ, WRITE, Copy, Fill, Key, Placement, Plan, Want


class DoesNotFitError(PolymuxError):
    """A task's buffers exceed the memory of the device, whatever is spilled."""


class ContentLostError(PolymuxError):
    """The only valid copy of a buffer was on a device that was lost."""


class BufferChangedError(PolymuxError):
    """The client changed the size or place of a buffer that is on a device."""


@dataclass(slots=True)
class Store:
    """Accounting of one device's memory.

    Parameters
    ----------
    name : str
        The device.
    capacity_nbytes : int
        What may be taken of it.
    """

    name: str
    capacity_nbytes: int
    used_nbytes: int = 0
    """Sum of the buffers whose content is valid here."""
    kept_nbytes: int = 0
    """Memory of buffers whose content here is stale; given up as soon as somebody needs it."""
    reserved_nbytes: int = 0
    """Kept free for copies that are under way."""
    valid: OrderedDict[int, Copy] = field(default_factory=OrderedDict)
    """Copies whose content is valid, by identity, the least recently used first."""
    stale: OrderedDict[int, Copy] = field(default_factory=OrderedDict)
    """Copies that are memory and nothing else."""

    @property
    def free_nbytes(self) -> int:
        """What a new plan may count on without taking anything away."""
        return self.capacity_nbytes - self.used_nbytes - self.kept_nbytes - self.reserved_nbytes

    def copies(self) -> Iterator[Copy]:
        """All copies that have memory here, the first to make room first: stale ones, then by their last use."""
        return chain(self.stale.values(), self.valid.values())


Route = Callable[[Copy, int], tuple[int, bool]]
"""Of a copy to a place: its cost (less is better), and whether it may go through the host's bytes of the buffer."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a plan is made from.

    Parameters
    ----------
    placements : mapping
        Known buffers; those that are missing are at home.
    stores : mapping of int to Store
        The devices' memories.
    route : callable
    """

    placements: Mapping[Key, Placement]
    stores: Mapping[int, Store]
    route: Route


def plan(
    known: Known,
    wants: Sequence[Want],
    location: int,
    queue: str = "",
    *,
    ahead: bool = False,
    evict_all: bool = False,
) -> Plan | None:
    """Decide what has to be copied, and what has to make room.

    Parameters
    ----------
    known : Known
    wants : sequence of Want
        Each buffer once, none with a stale generation.
    location : int
        Where they are needed.
    queue : str
        Whose tasks need them.
    ahead : bool
        For tasks that will run there later: nothing is waited for, and nothing taken that is held for a queue.
    evict_all : bool
        Take away every idle copy, because the driver refused memory that should be free.

    Returns
    -------
    Plan or None
        None: wait (or, ahead, let it be); a running task or a copy holds what is needed.

    Raises
    ------
    DoesNotFitError
        With sizes and owners.
    BufferChangedError
        When a want contradicts what is placed.
    ContentLostError
        When what is to be read is nowhere any more.
    """
    if location != HOST:
        _check_fits(wants, known.stores[location])
    result = Plan(location, queue, ahead)
    needed_nbytes = 0
    for want in wants:
        placement = known.placements.get(want.home.key) or Placement(want.nbytes, [want.home])
        _check_unchanged(placement, want)
        _check_there(placement, want)
        copy = placement.copies.get(location)
        if _must_wait(placement, copy, want, location):
            return None
        if copy is None:
            copy = Copy(placement, location)
        fill = Fill(placement, want, copy, None)
        if want.access & READ and not copy.valid and not _find_source(fill, known.route):
            return None
        needs_memory = location != HOST and copy.memory is None
        if needs_memory:
            needed_nbytes += want.nbytes
        if needs_memory or fill.source is not None:
            result.fills.append(fill)
        result.leased.append((placement, want))
    if location != HOST and not _make_room(result, known.stores[location], needed_nbytes, evict_all):
        return None
    return result


def _must_wait(placement: Placement, copy: Copy | None, want: Want, location: int) -> bool:
    """Whether somebody's use of a buffer has to end first."""
    if not want.access:  # nothing but memory
        return copy is not None and copy.busy
    if placement.writers and placement.written_at != location:
        return True
    if want.access & WRITE and placement.read_by_copies:
        return True
    if want.access & WRITE and any(place != location for place in placement.kept_at):
        return True
    if copy is None:
        return False
    return copy.busy or (not copy.valid and copy.pins > 0)  # those who use stale bytes still read them


def _find_source(fill: Fill, route: Route) -> bool:
    """Choose the best valid copy; False when none can be read now."""
    host = fill.placement.copies[HOST]
    best: int | None = None
    for copy in fill.placement.copies.values():
        if not copy.valid or copy.busy:
            continue
        cost, staged = route(copy, fill.copy.location)
        if staged and not host.idle:
            continue
        if best is None or cost < best:
            best, fill.source, fill.staged = cost, copy, staged
    return best is not None


def _make_room(result: Plan, store: Store, needed_nbytes: int, evict_all: bool) -> bool:
    """Choose what makes room; False when too little of it is idle."""
    missing_nbytes = needed_nbytes - store.free_nbytes
    if missing_nbytes > 0 or evict_all:
        keep = {id(placement) for placement, _ in result.leased}
        for copy in chain(_not_held(store), () if result.ahead else _held(store)):
            if missing_nbytes <= 0 and not evict_all:
                break
            if id(copy.placement) in keep or not copy.idle:
                continue
            if not copy.placement.is_sole(copy) or copy.placement.dead:
                result.drops.append(copy)
            elif copy.placement.copies[HOST].idle:
                result.spills.append(copy)
            else:
                continue
            missing_nbytes -= copy.placement.nbytes
    spilled_nbytes = sum(copy.placement.nbytes for copy in result.spills)
    result.reserved_nbytes = max(0, needed_nbytes - spilled_nbytes)
    return missing_nbytes <= 0


def _not_held(store: Store) -> Iterator[Copy]:
    return (copy for copy in store.copies() if not copy.held_for)


def _held(store: Store) -> Iterator[Copy]:
    return (copy for copy in store.copies() if copy.held_for)


def _check_unchanged(placement: Placement, want: Want) -> None:
    home = next((home for home in placement.homes if home.key == want.home.key), want.home)
    if placement.nbytes != want.nbytes or home.offset != want.home.offset:
        raise BufferChangedError(
            f"buffer {want.home.slot} was placed with {placement.nbytes} bytes at offset {home.offset} and is"
            f" now {want.nbytes} bytes at {want.home.offset}; a buffer's size and place must not change"
        )


def _check_there(placement: Placement, want: Want) -> None:
    if placement.gone and want.access & READ:
        raise ContentLostError(
            f"the content of buffer {want.home.slot} is lost: {placement.gone}; write it anew (queue.write, or a task"
            " that only writes it) before it is read"
        )


def _check_fits(wants: Sequence[Want], store: Store) -> None:
    total_nbytes = sum(want.nbytes for want in wants)
    if total_nbytes > store.capacity_nbytes:
        raise DoesNotFitError(too_large(wants, store))


def is_unsafe(fill: Fill) -> bool:
    """Whether a task on the host may be writing what would be copied ahead, since nobody has told it to ask."""
    source = fill.source
    return source is not None and source.location == HOST and fill.placement.where == HOST


def too_large(wants: Sequence[Want], store: Store) -> str:
    """Say what a task needs, what the device has and who holds it."""
    sizes = ", ".join(f"buffer {want.home.slot}: {size(want.nbytes)}" for want in wants)
    total_nbytes = sum(want.nbytes for want in wants)
    return (
        f"the task of {wants[0].home.owner.name} needs {size(total_nbytes)} on {store.name} at once ({sizes});"
        f" {store.name} has {size(store.capacity_nbytes)}, of which {holders(store)};"
        " split the task or use a device with more memory"
    )


def holders(store: Store) -> str:
    """Say who holds how much of a device's memory."""
    held: dict[str, int] = {}
    for copy in store.copies():
        if copy.valid or copy.pins:
            held[copy.placement.owner] = held.get(copy.placement.owner, 0) + copy.placement.nbytes
    return (
        ", ".join(f"{size(nbytes)} is held by {owner}" for owner, nbytes in held.items()) or "nothing is held"
    )


def size(nbytes: int) -> str:
    """Write a number of bytes for people, exact when small."""
    if nbytes < 10_240:
        return f"{nbytes} B"
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes / 1024:.1f} KiB"
