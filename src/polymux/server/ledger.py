"""Bookkeeping of buffers away from home: which changes a plan makes, step by step, and how it is undone.

Notes
-----
No locks, threads or copies here; `residency` calls it under its lock. At any time the used bytes of a store are the
sum of the buffers whose content is valid there, the kept ones the sum of those whose content there is stale, and
used, kept and reserved bytes together stay within the capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from polymux.segment import SegmentError
from polymux.server.placement import HOST, WRITE, Copy, Fill, Home, Key, Placement, Plan, Want
from polymux.server.placing import Known, Route, Store, plan

HOST_READS = 8
"""Tasks in a row that read a buffer on the host until it is the host's alone, which makes native tasks faster."""
HELD_READS = 1000
"""The same for a buffer that was copied ahead for a queue which is about to move."""
SWEPT = 4
"""Stale copies that are looked at, whether their buffers still live, before new memory is taken."""


class Ledger:
    """Every buffer that is away or has memory elsewhere, and every shared one.

    Parameters
    ----------
    free : callable
        Gives device memory back: ``free(location, memory)``.
    route : callable
        See `placing.Route`.
    """

    def __init__(self, free: Callable[[int, Any], None], route: Route) -> None:
        self._free_memory = free
        self.stores: dict[int, Store] = {}
        self.placements: dict[Key, Placement] = {}
        self._known = Known(self.placements, self.stores, route)

    # ---- plans ----

    def choose(
        self,
        wants: Sequence[Want],
        location: int,
        queue: str = "",
        *,
        ahead: bool = False,
        evict_all: bool = False,
    ) -> Plan | None:
        """Plan as `placing.plan` does, after what is stale has gone; None: wait."""
        missing = False
        for want in wants:
            placement = self.placements.get(want.home.key)
            if placement is not None:
                stale = [home for home in placement.homes if _is_older(home, want.home)]
                if stale and placement.busy:
                    return None
                for home in stale:
                    self.forget(home.key, home.generation)
            missing = missing or placement is None or location not in placement.copies
        if missing and location != HOST:
            self.sweep(location, SWEPT)
        return plan(self._known, wants, location, queue, ahead=ahead, evict_all=evict_all)

    def mark(self, chosen: Plan) -> None:
        """Begin a plan: its copies are under way from now on, its buffers pinned."""
        for copy in chosen.drops:
            self._drop(copy)
            self._collect(copy.placement)
        for copy in chosen.spills:
            copy.busy = copy.placement.copies[HOST].busy = True
            copy.placement.transfers += 1
            copy.placement.read_by_copies += 1
        if chosen.location != HOST:
            self.stores[chosen.location].reserved_nbytes += chosen.reserved_nbytes
        for placement, want in chosen.leased:
            self.placements[want.home.key] = placement
            if not chosen.ahead:
                self._lease(chosen, placement, want)
        for fill in chosen.fills:
            self._begin(fill, chosen.ahead)
        if not chosen.ahead and chosen.location != HOST:
            for placement, _ in chosen.leased:
                placement.copies[chosen.location].pins += 1

    def spilled(self, chosen: Plan, copy: Copy) -> None:
        """Note that the host has the content of a copy that makes room."""
        chosen.spills.remove(copy)
        placement, host = copy.placement, copy.placement.copies[HOST]
        self._end_spill(copy)
        host.valid = True
        self._drop(copy)
        self.stores[chosen.location].reserved_nbytes += placement.nbytes
        chosen.reserved_nbytes += placement.nbytes
        self._settle(placement)

    def filled(self, chosen: Plan, fill: Fill, memory: Any, through_host: bool) -> None:
        """Note that a plan's bytes have arrived, in the given device memory.

        Parameters
        ----------
        chosen : Plan
        fill : Fill
        memory : Memory or None
        through_host : bool
            Whether the host's bytes are the same now.
        """
        chosen.fills.remove(fill)
        copy, placement = fill.copy, fill.placement
        if copy.memory is None and copy.location != HOST:
            store = self.stores[copy.location]
            store.reserved_nbytes -= placement.nbytes
            chosen.reserved_nbytes -= placement.nbytes
            store.kept_nbytes += placement.nbytes
            store.stale[id(copy)] = copy
            copy.memory = memory
        self._end_fill(fill, chosen.ahead)
        if fill.source is not None and fill.version == placement.version:
            self._validate(copy)
            placement.copies[HOST].valid |= through_host
        self._settle(placement)

    def end(self, chosen: Plan) -> None:
        """End a plan whose copies have all been made."""
        self._unreserve(chosen)
        for placement, want in chosen.leased:
            if not chosen.ahead:
                self._arrive(chosen, placement, want.access)
            elif chosen.location != HOST:
                held = placement.copies.get(chosen.location)  # nothing pins it: it may have made room already
                if held is not None:
                    held.held_for = chosen.queue
            self._settle(placement)

    def abandon(self, chosen: Plan) -> None:
        """End a plan whose copies failed: what has moved stays where it is, nothing stays marked or pinned."""
        chosen.let_go()
        for copy in chosen.spills:
            self._end_spill(copy)
        if not chosen.ahead:
            for placement, want in chosen.leased:
                placement.writers -= bool(want.access & WRITE)
                if chosen.location != HOST:
                    placement.copies[chosen.location].pins -= 1
        for fill in chosen.fills:
            self._end_fill(fill, chosen.ahead)
            if fill.copy.memory is None and fill.copy.location != HOST:
                del fill.placement.copies[fill.copy.location]
        self._unreserve(chosen)
        spilling = (copy.placement for copy in chosen.spills)
        for placement in (*(placement for placement, _ in chosen.leased), *spilling):
            self._settle(placement)

    def unpin(self, placement: Placement, location: int, access: int, kept: bool) -> None:
        """End a task's use of a buffer on a device."""
        if kept:
            placement.kept_at.remove(location)
        placement.copies[location].pins -= 1
        if access & WRITE:
            placement.writers -= 1
        self._collect(placement)

    # ---- what is lost ----

    def lose(self, placement: Placement, location: int, reason: str) -> None:
        """Give up the copy on a lost device that cannot be read; without another valid one the content is lost."""
        copy = placement.copies.get(location)
        if copy is None or not copy.valid or copy.busy:
            return
        if placement.is_sole(copy):
            placement.gone, placement.gone_from = reason, location
        if copy.idle:
            self._drop(copy)
        else:
            self._invalidate(copy)
        self._settle(placement)

    # ---- what is prepared for queues ----

    def lend(self, homes: Iterable[Home], location: int) -> None:
        """Let tasks on the host ask before they use a buffer, because it is about to be copied to a device."""
        for home in homes:
            placement = self.find(home)
            if placement is not None:
                placement.lent = location
                self._settle(placement)

    def find(self, home: Home) -> Placement | None:
        """Return the entry of a buffer; None: it has none, or its slot has another one by now."""
        placement = self.placements.get(home.key)
        return placement if placement is not None and home in placement.homes else None

    def has(self, home: Home, location: int) -> bool:
        """Whether a buffer's content is valid at a place."""
        placement = self.find(home)
        copy = None if placement is None else placement.copies.get(location)
        return copy is not None and copy.valid and not copy.busy

    def know(self, want: Want) -> Placement:
        """Return a buffer's entry, a new one if it has none."""
        return self.placements.setdefault(want.home.key, Placement(want.nbytes, [want.home]))

    def release_held(self, queue: str) -> None:
        """Hold nothing for a queue any more; memory that holds nothing valid is given back."""
        for store in self.stores.values():
            for copy in [copy for copy in store.copies() if copy.held_for == queue]:
                copy.held_for = ""
                if not copy.valid and copy.idle:
                    self._drop(copy)
                    self._collect(copy.placement)

    # ---- shared buffers ----

    def make_shared(self, home: Home, nbytes: int) -> None:
        """Keep a buffer's entry even while it is at home, because others will have it as well."""
        self.placements.setdefault(home.key, Placement(nbytes, [home])).shared = True

    def is_shared(self, home: Home) -> bool:
        """Whether `home` is one of the homes of a shared buffer."""
        return self.find(home) is not None

    def join(self, home: Home, other: Home) -> bool:
        """Let `other` be the same buffer as the shared `home`; False when that one is gone."""
        if not self.is_shared(home):
            return False
        placement = self.placements[home.key]
        self.forget(other.key)
        placement.homes.append(other)
        self.placements[other.key] = placement
        other.memory.set_location(other.slot, other.generation, placement.where)
        return True

    # ---- the end of buffers ----

    def forget(self, key: Key, generation: int | None = None) -> None:
        """Drop the buffer that was in a slot, if its generation is the given one."""
        placement = self.placements.get(key)
        if placement is None:
            return
        gone = [home for home in placement.homes if home.key == key]
        if generation is not None and any(home.generation != generation for home in gone):
            return
        del self.placements[key]
        placement.homes = [home for home in placement.homes if home.key != key]
        placement.freed_by = key.session
        for home in gone:
            home.memory.set_location(home.slot, home.generation, HOST)
        self._collect(placement)

    def is_moving(self, key: Key, generation: int) -> bool:
        """Whether a copy of a buffer is under way."""
        placement = self.placements.get(key)
        if placement is None or not placement.transfers:
            return False
        return any(home.key == key and home.generation == generation for home in placement.homes)

    def forget_session(self, session: int) -> None:
        """Drop all buffers of a session."""
        for key in [key for key in self.placements if key.session == session]:
            self.forget(key)

    def sweep(self, location: int, limit: int | None = None) -> None:
        """Give back stale memory of buffers that have been freed: their clients need not say so."""
        stale = self.stores[location].stale
        for copy in list(islice(stale.values(), limit)):
            stale.move_to_end(id(copy))  # the next sweep looks at others
            for home in [home for home in copy.placement.homes if not _lives(home)]:
                self.forget(home.key, home.generation)

    def _lease(self, chosen: Plan, placement: Placement, want: Want) -> None:
        placement.queue = chosen.queue or placement.queue
        if want.access & WRITE:
            placement.version += 1
            placement.writers += 1
            placement.written_at = chosen.location
        copy = placement.copies.get(chosen.location)
        if chosen.location != HOST and copy is not None and copy.valid:
            self.stores[chosen.location].valid.move_to_end(id(copy))

    def _begin(self, fill: Fill, ahead: bool) -> None:
        placement = fill.placement
        placement.copies[fill.copy.location] = fill.copy
        placement.transfers += 1
        fill.version = placement.version
        fill.copy.busy = True
        if fill.source is not None:
            fill.source.pins += 1
            placement.read_by_copies += not ahead
        if fill.staged:
            placement.copies[HOST].busy = True

    def _end_fill(self, fill: Fill, ahead: bool) -> None:
        placement = fill.placement
        placement.transfers -= 1
        fill.copy.busy = False
        if fill.source is not None:
            placement.lent = HOST
            fill.source.pins -= 1
            placement.read_by_copies -= not ahead
        if fill.staged:
            placement.copies[HOST].busy = False

    def _end_spill(self, copy: Copy) -> None:
        copy.busy = copy.placement.copies[HOST].busy = False
        copy.placement.transfers -= 1
        copy.placement.read_by_copies -= 1

    def _arrive(self, chosen: Plan, placement: Placement, access: int) -> None:
        """Let a task begin to use a buffer at the plan's place."""
        copy = placement.copies[chosen.location]
        placement.last = chosen.location
        if copy.held_for == chosen.queue:
            copy.held_for = ""
        if chosen.location == HOST:
            placement.host_reads += 1
            placement.writers -= bool(access & WRITE)
        else:
            placement.host_reads = 0
        if access & WRITE:
            self._validate(copy)
            placement.gone, placement.gone_from = "", HOST
        awaited = any(other.held_for for other in placement.copies.values())
        if access & WRITE or placement.host_reads >= (HELD_READS if awaited else HOST_READS):
            for other in placement.copies.values():
                if other is not copy:
                    self._invalidate(other)

    def _unreserve(self, chosen: Plan) -> None:
        if chosen.location != HOST:
            self.stores[chosen.location].reserved_nbytes -= chosen.reserved_nbytes
            chosen.reserved_nbytes = 0

    def _validate(self, copy: Copy) -> None:
        if not copy.valid and copy.location != HOST:
            store = self.stores[copy.location]
            store.valid[id(copy)] = store.stale.pop(id(copy))
            store.used_nbytes += copy.placement.nbytes
            store.kept_nbytes -= copy.placement.nbytes
        copy.valid = True

    def _invalidate(self, copy: Copy) -> None:
        if copy.valid and copy.location != HOST:
            store = self.stores[copy.location]
            store.stale[id(copy)] = store.valid.pop(id(copy))
            store.used_nbytes -= copy.placement.nbytes
            store.kept_nbytes += copy.placement.nbytes
        copy.valid = False

    def _drop(self, copy: Copy) -> None:
        """Give the memory of a device's copy back."""
        self._invalidate(copy)
        store, placement = self.stores[copy.location], copy.placement
        self._free_memory(copy.location, copy.memory)
        del store.stale[id(copy)]
        store.kept_nbytes -= placement.nbytes
        del placement.copies[copy.location]
        copy.memory = None
        _tell(placement)

    def _settle(self, placement: Placement) -> None:
        _tell(placement)
        self._collect(placement)

    def _collect(self, placement: Placement) -> None:
        """Drop what nobody needs: the device memory of the dead, the entry of what has memory at home alone."""
        if placement.dead:
            for copy in [copy for copy in placement.copies.values() if copy.location != HOST and copy.idle]:
                self._drop(copy)
        elif len(placement.copies) == 1 and not (
            placement.shared or placement.busy or placement.lent or placement.gone
        ):
            for home in placement.homes:
                self.placements.pop(home.key, None)


def _is_older(home: Home, wanted: Home) -> bool:
    return home.key == wanted.key and home.generation != wanted.generation


def _lives(home: Home) -> bool:
    try:
        home.memory.buffer(home.slot, home.generation)
    except SegmentError:
        return False
    return True


def _tell(placement: Placement) -> None:
    """Let clients and workers know where a buffer is now."""
    where = placement.where
    if where != placement.told:
        placement.told = where
        for home in placement.homes:
            home.memory.set_location(home.slot, home.generation, where)
