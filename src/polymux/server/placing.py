"""Which copies and evictions put a task's buffers at one place: pure, over the values of `placement`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from polymux.core.errors import PolymuxError
from polymux.server.placement import HOST, Key, Placement, Plan, Want


class DoesNotFitError(PolymuxError):
    """A task's buffers exceed the memory of the device, whatever is spilled."""


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
    """Sum of the buffers that have memory here."""
    reserved_nbytes: int = 0
    """Kept free for copies that are under way."""
    residents: OrderedDict[int, Placement] = field(default_factory=OrderedDict)
    """By identity, the least recently used first."""

    @property
    def free_nbytes(self) -> int:
        """What a new plan may count on."""
        return self.capacity_nbytes - self.used_nbytes - self.reserved_nbytes


def plan(
    wants: Sequence[Want],
    location: int,
    placements: Mapping[Key, Placement],
    stores: Mapping[int, Store],
    evict_all: bool = False,
) -> Plan | None:
    """Decide what has to move.

    Parameters
    ----------
    wants : sequence of Want
        Each buffer once, none with a stale generation.
    location : int
        Where they are needed.
    placements : mapping
        Known buffers; those that are missing are at home.
    stores : mapping of int to Store
        The devices' memories.
    evict_all : bool
        Spill every idle buffer, because the driver refused memory that should be free.

    Returns
    -------
    Plan or None
        None: wait, a running task or a copy holds what is needed.

    Raises
    ------
    DoesNotFitError
        With sizes and owners.
    BufferChangedError
        When a want contradicts what is placed.
    """
    if location != HOST:
        _check_fits(wants, stores[location])
    result = Plan(location)
    needed_nbytes = 0
    for want in wants:
        placement = placements.get(want.home.key) or Placement(want.nbytes, [want.home])
        _check_unchanged(placement, want)
        if placement.moving:
            return None
        if placement.location != location:
            if placement.pins:
                return None
            if placement.location != HOST:
                result.outgoing.append(placement)
            if location != HOST:
                needed_nbytes += want.nbytes
                result.incoming.append((placement, want))
        result.pinned.append(placement)
    if location != HOST:
        victims = _victims(stores[location], needed_nbytes, result.pinned, evict_all)
        if victims is None:
            return None
        result.outgoing.extend(victims)
        result.reserved_nbytes = max(0, needed_nbytes - sum(victim.nbytes for victim in victims))
    return result


def _victims(
    store: Store, needed_nbytes: int, wanted: Sequence[Placement], evict_all: bool
) -> list[Placement] | None:
    missing_nbytes = needed_nbytes - store.free_nbytes
    victims: list[Placement] = []
    if missing_nbytes <= 0 and not evict_all:
        return victims
    keep = {id(placement) for placement in wanted}
    for placement in store.residents.values():
        if missing_nbytes <= 0 and not evict_all:
            break
        if placement.busy or id(placement) in keep:
            continue
        victims.append(placement)
        missing_nbytes -= placement.nbytes
    return victims if missing_nbytes <= 0 else None


def _check_unchanged(placement: Placement, want: Want) -> None:
    home = next((home for home in placement.homes if home.key == want.home.key), want.home)
    if placement.nbytes != want.nbytes or home.offset != want.home.offset:
        raise BufferChangedError(
            f"buffer {want.home.slot} was placed with {placement.nbytes} bytes at offset {home.offset} and is"
            f" now {want.nbytes} bytes at {want.home.offset}; a buffer's size and place must not change"
        )


def _check_fits(wants: Sequence[Want], store: Store) -> None:
    total_nbytes = sum(want.nbytes for want in wants)
    if total_nbytes > store.capacity_nbytes:
        raise DoesNotFitError(too_large(wants, store))


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
    for placement in store.residents.values():
        held[placement.owner] = held.get(placement.owner, 0) + placement.nbytes
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
