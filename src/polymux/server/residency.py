"""Which memory holds the one valid copy of every buffer: waits for it, moves it, spills, and says who has what.

Notes
-----
A task takes all of its buffers at once or waits holding none, so waiting tasks cannot block each other; it waits
only for tasks that run. Copies are made outside the lock, with the buffer marked as moving, by the thread that needs
them: with its own stream into its device and out of it to make room; out of another device with that device's
copier, a stream of its own that one thread at a time uses.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from polymux.core.errors import Closed
from polymux.server.ledger import Ledger, Usage
from polymux.server.placement import (
    HOST,
    READ,
    Allocator,
    Copier,
    Home,
    Key,
    Lease,
    Owner,
    Plan,
    Want,
    merged,
)
from polymux.server.placing import DoesNotFitError, Store, too_large
from polymux.server.transfer import DeviceMemory, Observer

PASSES = 32
"""How many younger tasks may overtake one that waits."""


@dataclass(slots=True, eq=False)
class _Waiter:
    location: int
    keys: frozenset[Key]
    passed: int = 0

    def competes_with(self, other: _Waiter) -> bool:
        return self.location == other.location != HOST or not self.keys.isdisjoint(other.keys)


class Residency:
    """The map of buffers that are, or have been, away from home.

    Parameters
    ----------
    observe : callable
        Told of every copy that was made, by the thread that made it.
    """

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self._changed = threading.Condition(threading.Lock())
        self._devices: dict[int, DeviceMemory] = {}
        self._ledger = Ledger(lambda location, memory: self._devices[location].device.free(memory))
        self._waiters: list[_Waiter] = []

    def add_device(
        self, location: int, name: str, device: Allocator, copier: Copier, capacity_nbytes: int
    ) -> None:
        """Make a device's own memory known under a location of 1 or more."""
        self._devices[location] = DeviceMemory(location, name, device, copier, self._observe)
        self._ledger.stores[location] = Store(name, capacity_nbytes)

    def acquire(
        self, location: int, wants: Sequence[Want], queue: str = "", stream: Copier | None = None
    ) -> Lease:
        """Bring buffers to one place and, on a device, hold them there.

        Parameters
        ----------
        location : int
            `HOST` or a device's.
        wants : sequence of Want
            A buffer may occur several times.
        queue : str
            Whose task it is.
        stream : Copier, optional
            The calling thread's own stream of that device; the device's copier otherwise.

        Returns
        -------
        Lease
            To be given to `release` after the task.

        Raises
        ------
        DoesNotFitError
            The task needs more than the device has.
        BufferChangedError
            The client changed a buffer's size while it was away.
        Closed
            The session has ended.
        """
        wanted = merged(wants)
        evict_all = False
        while True:
            chosen = self._choose(location, wanted, queue, evict_all)
            try:
                return Lease(location, chosen.pinned, wanted, self._carry_out(chosen, stream))
            except MemoryError as error:
                if evict_all:
                    text = too_large(wanted, self._ledger.stores[location])
                    raise DoesNotFitError(f"{text}; its driver said: {error}") from error
                evict_all = True

    def release(self, lease: Lease) -> None:
        """End a lease: what the task may have written is the only valid copy now."""
        if lease.location == HOST:
            return
        with self._changed:
            for placement, want in zip(lease.placements, lease.wants, strict=True):
                self._ledger.unpin(placement, want.access)
            self._changed.notify_all()

    def make_shared(self, home: Home, nbytes: int) -> None:
        """Remember a buffer even while it is at home, because others will have it as well."""
        with self._changed:
            self._ledger.make_shared(home, nbytes)

    def is_shared(self, home: Home) -> bool:
        """Whether a buffer still stands for the shared one that it was."""
        with self._changed:
            return self._ledger.is_shared(home)

    def join(self, home: Home, other: Home) -> bool:
        """Say that `other` has the pages of the shared `home`: one buffer; False when that one is gone."""
        with self._changed:
            return self._ledger.join(home, other)

    def forget(self, key: Key, generation: int) -> None:
        """Drop a buffer that its client has freed; device memory goes as soon as no task runs on it."""
        with self._changed:
            self._ledger.forget(key, generation)
            self._changed.notify_all()

    def is_moving(self, key: Key, generation: int) -> bool:
        """Whether a copy of a buffer is under way."""
        with self._changed:
            return self._ledger.is_moving(key, generation)

    def forget_when_still(self, key: Key, generation: int) -> None:
        """Drop a buffer once no copy of it is under way, so that its bytes of the segment are free on return."""
        with self._changed:
            while self._ledger.is_moving(key, generation):
                self._changed.wait()
            self._ledger.forget(key, generation)
            self._changed.notify_all()

    def forget_owner(self, owner: Owner) -> None:
        """Drop all that a session had; none of its tasks waits any longer."""
        with self._changed:
            owner.ended = True
            self._ledger.forget_session(owner.session)
            self._changed.notify_all()

    def usage(self) -> dict[int, Usage]:
        """Count the memory of every device with its own."""
        with self._changed:
            return {location: self._ledger.usage(location) for location in self._ledger.stores}

    def footprints(self) -> dict[str, dict[int, int]]:
        """Count the data of queues.

        Returns
        -------
        dict
            Queue id -> location (0: host) -> bytes of the buffers that the queue used last. Buffers that have never
            left the host are not known here.
        """
        with self._changed:
            return self._ledger.footprints()

    def _choose(self, location: int, wanted: list[Want], queue: str, evict_all: bool) -> Plan:
        waiter = _Waiter(location, frozenset(want.home.key for want in wanted))
        with self._changed:
            chosen = self._try(waiter, wanted, evict_all)
            if chosen is None:
                self._waiters.append(waiter)
                try:
                    while chosen is None:
                        self._changed.wait()
                        chosen = self._try(waiter, wanted, evict_all)
                finally:
                    self._waiters.remove(waiter)
                    self._changed.notify_all()  # whoever is behind it may be able to go on
            self._ledger.mark(chosen, queue)
            return chosen

    def _try(self, waiter: _Waiter, wanted: list[Want], evict_all: bool) -> Plan | None:
        for want in wanted:
            if want.home.owner.ended:
                raise Closed(f"{want.home.owner.name} has ended")
        place = self._waiters.index(waiter) if waiter in self._waiters else len(self._waiters)
        elders = [elder for elder in self._waiters[:place] if elder.competes_with(waiter)]
        if any(elder.passed >= PASSES for elder in elders):
            return None
        chosen = self._ledger.choose(wanted, waiter.location, evict_all)
        if chosen is not None:
            for elder in elders:
                elder.passed += 1
        return chosen

    def _carry_out(self, chosen: Plan, stream: Copier | None) -> int:
        """Make the copies; on failure nothing stays marked or pinned."""
        moved_nbytes = 0
        try:
            for placement in list(chosen.outgoing):
                own = stream if placement.location == chosen.location else None
                moved_nbytes += self._devices[placement.location].bring_out(placement, own)
                with self._changed:
                    self._ledger.left(chosen, placement)
                    self._changed.notify_all()
            for placement, want in list(chosen.incoming):
                read = bool(want.access & READ)
                memory = self._devices[chosen.location].bring_in(placement, want, read, stream)
                moved_nbytes += placement.nbytes if read else 0
                with self._changed:
                    self._ledger.entered(chosen, placement, memory)
                    self._changed.notify_all()
        except BaseException:
            with self._changed:
                self._ledger.abandon(chosen)
                self._changed.notify_all()
            raise
        with self._changed:
            self._ledger.end(chosen)
            self._changed.notify_all()
        return moved_nbytes
