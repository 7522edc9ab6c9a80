"""Bookkeeping of buffers away from home: which changes a plan makes, step by step, and how it is undone.

Notes
-----
No locks, threads or copies here; `residency` calls it under its lock. At any time the used bytes of a store are the
sum of the buffers that have memory there, and used and reserved bytes together stay within the capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polymux.server.placement import HOST, WRITE, Home, Key, Placement, Plan, Want
from polymux.server.placing import Store, plan


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of one device, in bytes."""

    capacity_nbytes: int
    used_nbytes: int
    by_session: dict[int, int]
    by_queue: dict[str, int]


class Ledger:
    """Every buffer that is away, and every shared one.

    Parameters
    ----------
    free : callable
        Gives device memory back: ``free(location, memory)``.
    """

    def __init__(self, free: Callable[[int, Any], None]) -> None:
        self._free_memory = free
        self.stores: dict[int, Store] = {}
        self.placements: dict[Key, Placement] = {}

    def choose(self, wants: Sequence[Want], location: int, evict_all: bool = False) -> Plan | None:
        """Plan as `placing.plan` does, after what is stale has gone; None: wait."""
        for want in wants:
            placement = self.placements.get(want.home.key)
            if placement is None:
                continue
            stale = [home for home in placement.homes if _is_stale(home, want.home)]
            if stale and placement.busy:
                return None
            for home in stale:
                self.forget(home.key, home.generation)
        return plan(wants, location, self.placements, self.stores, evict_all)

    def mark(self, chosen: Plan, queue: str) -> None:
        """Begin a plan: its copies are under way from now on, its buffers pinned."""
        for placement in chosen.outgoing:
            placement.moving = True
        for placement, want in chosen.incoming:
            placement.moving = True
            self.placements[want.home.key] = placement
        if chosen.location != HOST:
            self.stores[chosen.location].reserved_nbytes += chosen.reserved_nbytes
        for placement in chosen.pinned:
            placement.queue = queue or placement.queue
            if chosen.location == HOST:
                continue
            placement.pins += 1
            if placement.location == chosen.location:
                self.stores[chosen.location].residents.move_to_end(id(placement))

    def left(self, chosen: Plan, placement: Placement) -> None:
        """Note that an outgoing buffer of a plan is at home now."""
        chosen.outgoing.remove(placement)
        store = self.stores[placement.location]
        if placement.location == chosen.location:
            store.reserved_nbytes += placement.nbytes
            chosen.reserved_nbytes += placement.nbytes
        self._take_home(placement)
        placement.moving = any(placement is entering for entering, _ in chosen.incoming)
        self._collect(placement)

    def entered(self, chosen: Plan, placement: Placement, memory: Any) -> None:
        """Note that an incoming buffer of a plan has arrived in the given device memory."""
        chosen.incoming = [entry for entry in chosen.incoming if entry[0] is not placement]
        store = self.stores[chosen.location]
        store.reserved_nbytes -= placement.nbytes
        chosen.reserved_nbytes -= placement.nbytes
        store.used_nbytes += placement.nbytes
        store.residents[id(placement)] = placement
        placement.memory, placement.location, placement.host_clean = memory, chosen.location, True
        placement.moving = False
        _mirror(placement)

    def end(self, chosen: Plan) -> None:
        """End a plan whose copies have all been made."""
        if chosen.location != HOST:
            self.stores[chosen.location].reserved_nbytes -= chosen.reserved_nbytes
            chosen.reserved_nbytes = 0
        for placement in chosen.pinned:
            self._collect(placement)

    def abandon(self, chosen: Plan) -> None:
        """End a plan whose copies failed: what has moved stays where it is, nothing stays marked or pinned."""
        for placement in chosen.outgoing:
            placement.moving = False
        for placement, _ in chosen.incoming:
            placement.moving = False
        if chosen.location != HOST:
            for placement in chosen.pinned:
                placement.pins -= 1
        self.end(chosen)
        for placement in chosen.outgoing:
            self._collect(placement)

    def unpin(self, placement: Placement, access: int) -> None:
        """End a task's use of a buffer on a device."""
        if access & WRITE:
            placement.host_clean = False
        placement.pins -= 1
        self._collect(placement)

    def make_shared(self, home: Home, nbytes: int) -> None:
        """Keep a buffer's entry even while it is at home, because others will have it as well."""
        self.placements.setdefault(home.key, Placement(nbytes, [home])).shared = True

    def is_shared(self, home: Home) -> bool:
        """Whether `home` is one of the homes of a shared buffer."""
        placement = self.placements.get(home.key)
        return placement is not None and home in placement.homes

    def join(self, home: Home, other: Home) -> bool:
        """Let `other` be the same buffer as the shared `home`; False when that one is gone."""
        if not self.is_shared(home):
            return False
        placement = self.placements[home.key]
        self.forget(other.key)
        placement.homes.append(other)
        self.placements[other.key] = placement
        _mirror(placement)
        return True

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
        for home in gone:
            home.memory.set_location(home.slot, home.generation, HOST)
        self._collect(placement)

    def is_moving(self, key: Key, generation: int) -> bool:
        """Whether a copy of a buffer is under way."""
        placement = self.placements.get(key)
        if placement is None or not placement.moving:
            return False
        return any(home.key == key and home.generation == generation for home in placement.homes)

    def forget_session(self, session: int) -> None:
        """Drop all buffers of a session."""
        for key in [key for key in self.placements if key.session == session]:
            self.forget(key)

    def usage(self, location: int) -> Usage:
        """Count what is held, by session and by queue."""
        store = self.stores[location]
        by_session: dict[int, int] = {}
        by_queue: dict[str, int] = {}
        for placement in store.residents.values():
            by_queue[placement.queue] = by_queue.get(placement.queue, 0) + placement.nbytes
            for home in placement.homes[:1]:
                session = home.owner.session
                by_session[session] = by_session.get(session, 0) + placement.nbytes
        return Usage(store.capacity_nbytes, store.used_nbytes, by_session, by_queue)

    def footprints(self) -> dict[str, dict[int, int]]:
        """Count by queue and location the bytes of the buffers that it used last and that are known."""
        found: dict[str, dict[int, int]] = {}
        for placement in {id(placement): placement for placement in self.placements.values()}.values():
            if placement.queue:
                at = found.setdefault(placement.queue, {})
                at[placement.location] = at.get(placement.location, 0) + placement.nbytes
        return found

    def _take_home(self, placement: Placement) -> None:
        store = self.stores[placement.location]
        self._free_memory(placement.location, placement.memory)
        del store.residents[id(placement)]
        store.used_nbytes -= placement.nbytes
        placement.memory, placement.location, placement.host_clean = None, HOST, True
        _mirror(placement)

    def _collect(self, placement: Placement) -> None:
        """Drop what nobody needs: the device memory of the dead, the entry of what is at home."""
        if placement.busy:
            return
        if placement.dead and placement.location != HOST:
            self._take_home(placement)
        if placement.location == HOST and not placement.shared:
            for home in placement.homes:
                self.placements.pop(home.key, None)


def _is_stale(home: Home, wanted: Home) -> bool:
    return home.key == wanted.key and home.generation != wanted.generation


def _mirror(placement: Placement) -> None:
    for home in placement.homes:
        home.memory.set_location(home.slot, home.generation, placement.location)
