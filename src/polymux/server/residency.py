"""Which memories hold valid copies of every buffer: waits for them, makes them, spills, and says who has what.

Notes
-----
A buffer may be valid at several places: a read elsewhere adds a copy, a write makes the others stale. A task takes
all of its buffers at once or waits holding none, so waiting tasks cannot block each other; it waits only for tasks
that run. Copies are made outside the lock, with the buffer marked, by the thread that needs them: with its own stream
into its device and out of it to make room; out of another device with that device's copier, a stream of its own that
one thread at a time uses.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from polymux.core.errors import Closed
from polymux.server import memory_usage
from polymux.server.health import Health
from polymux.server.ledger import Ledger
from polymux.server.memory_usage import Usage
from polymux.server.placement import (
    HOST,
    Allocator,
    Copier,
    Copy,
    Fill,
    Home,
    Key,
    Lease,
    Owner,
    Plan,
    Want,
    merged,
)
from polymux.server.placing import DoesNotFitError, Store, is_unsafe, too_large
from polymux.server.transfer import CopyFailedError, DeviceMemory, Observer, Transfers
from polymux.server.waiting import PASSES, Relieve, Waiter

SWEPT_FOR_USAGE = 256
"""Stale copies of each memory that are looked at, whether their buffers still live, before it is counted."""


class Residency:
    """The map of buffers that are, or have been, away from home.

    Parameters
    ----------
    observe : callable
        Told of every copy that was made, by the thread that made it.
    """

    def __init__(self, observe: Observer) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._transfers = Transfers(observe)
        self._devices = self._transfers.devices
        self._ledger = Ledger(
            lambda location, memory: self._devices[location].device.free(memory), self._transfers.route
        )
        self._health: dict[int, Health] = {}
        self._waiters: list[Waiter] = []

    def add_device(
        self,
        location: int,
        name: str,
        device: Allocator,
        copier: Copier,
        capacity_nbytes: int,
        health: Health | None = None,
    ) -> None:
        """Make a device's own memory known under a location of 1 or more."""
        self._devices[location] = DeviceMemory(location, name, device, copier)
        self._health[location] = health or Health()
        self._ledger.stores[location] = Store(name, capacity_nbytes)

    def acquire(
        self,
        location: int,
        wants: Sequence[Want],
        queue: str = "",
        stream: Copier | None = None,
        relieve: Relieve | None = None,
        also: Sequence[Want] = (),
    ) -> Lease:
        """Bring buffers to one place and, on a device, hold them there.

        Parameters
        ----------
        location : int
            `HOST` or a device's.
        wants : sequence of Want
            A buffer may occur several times. What is only written is not copied. What is written is valid there
            alone from now on; a client that may write a buffer at home has it brought with `WRITE`.
        queue : str
            Whose task it is.
        stream : Copier, optional
            The calling thread's own stream of that device; the device's copier otherwise.
        relieve : callable, optional
            Ends a task of the calling thread, which may be what has to be waited for; False when there is none.
        also : sequence of Want
            Held as well, as far as their content is there at that moment: what no task asks for is not taken away.
            Until the lease ends nobody writes any of its buffers elsewhere.

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
        waiter = Waiter(location, frozenset(want.home.key for want in wanted), also)
        evict_all = False
        while True:
            chosen, done = self._choose(waiter, wanted, queue, evict_all, relieve)
            try:
                moved_nbytes = 0 if done else self._carry_out(chosen, stream)
                return Lease.of(chosen, moved_nbytes)
            except MemoryError as error:
                if evict_all and not (relieve is not None and relieve()):
                    raise self._refused(wanted, location, error) from error
                evict_all = True
            except CopyFailedError as error:
                source = None if chosen.spills or not chosen.fills else chosen.fills[0].source
                with self._changed:
                    if not self._transfers.blame(source, error):
                        raise

    def release(self, lease: Lease) -> None:
        """End a lease: its memory may be taken away from now on."""
        if lease.location == HOST:
            return
        with self._changed:
            for placement, want in zip(lease.placements, lease.wants, strict=True):
                self._ledger.unpin(placement, lease.location, want.access, lease.keeps)
            self._changed.notify_all()

    # ---- ahead of tasks that will come ----

    def lend(self, wants: Iterable[Want], location: int) -> None:
        """Have tasks on the host ask before they use these buffers, as long as a copy to a device is to come.

        A task on the host that began before may still write them. With `HOST` as the location nothing is to come.
        """
        with self._changed:
            wanted = list(wants)
            if location != HOST:
                for want in wanted:
                    self._ledger.know(want)
            self._ledger.lend([want.home for want in wanted], location)

    def bring_ahead(self, location: int, want: Want, queue: str) -> int | None:
        """Let a place have a buffer, or memory for it, before the queue's tasks run there; waits for no task.

        Parameters
        ----------
        location : int
        want : Want
            With `READ` its content is copied, and is valid there until somebody writes it elsewhere; with no access
            there is memory for it.
        queue : str
            The memory is kept for it as long as no task has to wait for that.

        Returns
        -------
        int or None
            Bytes copied; None: a task or a copy uses what is needed, and nothing was done.

        Raises
        ------
        DoesNotFitError
            The device has no memory for it.
        BufferChangedError, Closed
            As `acquire`.
        """
        evict_all = False
        while True:
            with self._changed:
                if want.home.owner.ended:
                    raise Closed(f"{want.home.owner.name} has ended")
                chosen = self._ledger.choose([want], location, queue, ahead=True, evict_all=evict_all)
                if chosen is None or any(is_unsafe(fill) for fill in chosen.fills):
                    return None
                self._ledger.mark(chosen)
            try:
                return self._carry_out(chosen, None)
            except MemoryError as error:
                if evict_all:
                    raise self._refused([want], location, error) from error
                evict_all = True

    def is_at_home(self, home: Home) -> bool:
        """Whether only the host has a buffer's content."""
        with self._changed:
            placement = self._ledger.find(home)
            return placement is None or placement.where == HOST

    def has_memory(self, location: int, want: Want) -> bool:
        """Whether a buffer has memory at a place."""
        with self._changed:
            placement = self._ledger.find(want.home)
            return placement is not None and location in placement.copies

    def release_held(self, queue: str) -> None:
        """Keep nothing for a queue any more; memory that holds nothing valid is given back."""
        with self._changed:
            self._ledger.release_held(queue)
            self._changed.notify_all()

    def excess(self, location: int, wants: Sequence[Want]) -> str | None:
        """Say why one task's buffers can never be on a device together; None: they can."""
        with self._changed:
            store = self._ledger.stores[location]
            fits = sum(want.nbytes for want in wants) <= store.capacity_nbytes
            return None if fits else too_large(wants, store)

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

    # ---- accounts ----

    def usage(self) -> dict[int, Usage]:
        """Count the memory of every device with its own."""
        with self._changed:
            for location in self._ledger.stores:
                self._ledger.sweep(location, SWEPT_FOR_USAGE)
            return {location: memory_usage.usage(store) for location, store in self._ledger.stores.items()}

    def footprints(self) -> dict[str, dict[int, int]]:
        """Count the data of queues.

        Returns
        -------
        dict
            Queue id -> location (0: host) -> bytes of the buffers that the queue used last, each counted where it
            was used last. Buffers that have never left the host are not known here.
        """
        with self._changed:
            return memory_usage.footprints(self._ledger.placements.values())

    # ---- waiting and copying ----

    def _choose(
        self, waiter: Waiter, wanted: list[Want], queue: str, evict_all: bool, relieve: Relieve | None
    ) -> tuple[Plan, bool]:
        """Wait until a plan is possible and begin it; True when nothing has to be copied and it has ended as well."""
        while True:
            begun = self._begin(waiter, wanted, queue, evict_all, wait=relieve is None)
            if begun is not None:
                return begun
            if relieve is not None and not relieve():
                relieve = None

    def _begin(
        self, waiter: Waiter, wanted: list[Want], queue: str, evict_all: bool, wait: bool
    ) -> tuple[Plan, bool] | None:
        with self._changed:
            here = waiter.at_hand(self._waiters, lambda want: self._ledger.has(want.home, waiter.location))
            chosen = self._try(waiter, merged([*wanted, *here]), queue, evict_all) if here else None
            if chosen is None:
                chosen = self._try(waiter, wanted, queue, evict_all)
            if chosen is None and not wait:
                return None
            if chosen is None:
                self._waiters.append(waiter)
                try:
                    while chosen is None:
                        self._changed.wait()
                        chosen = self._try(waiter, wanted, queue, evict_all)
                finally:
                    self._waiters.remove(waiter)
                    self._changed.notify_all()  # whoever is behind it may be able to go on
            self._ledger.mark(chosen)
            if waiter.also:
                chosen.keep()
            done = not (chosen.spills or chosen.fills)
            if done:
                self._ledger.end(chosen)
            return chosen, done

    def _try(self, waiter: Waiter, wanted: list[Want], queue: str, evict_all: bool) -> Plan | None:
        for want in wanted:
            if want.home.owner.ended:
                raise Closed(f"{want.home.owner.name} has ended")
        elders = waiter.elders(self._waiters)
        if any(elder.passed >= PASSES for elder in elders):
            return None
        chosen = self._ledger.choose(wanted, waiter.location, queue, evict_all=evict_all)
        if chosen is not None:
            for elder in elders:
                elder.passed += 1
        return chosen

    def _carry_out(self, chosen: Plan, stream: Copier | None) -> int:
        """Make the copies; on failure nothing stays marked or pinned."""
        moved_nbytes = 0
        try:
            for copy in list(chosen.spills):
                host = copy.placement.copies[HOST]
                self._transfers.fill(copy.placement, copy, host, None, stream)
                moved_nbytes += copy.placement.nbytes
                with self._changed:
                    self._ledger.spilled(chosen, copy)
                    self._changed.notify_all()
            for fill in list(chosen.fills):
                moved_nbytes += self._fill(chosen, fill, stream)
        except BaseException as error:
            with self._changed:
                failed = chosen.spills[0] if chosen.spills else chosen.fills[0].source
                self._ledger.abandon(chosen)
                self._changed.notify_all()
            if isinstance(error, CopyFailedError):
                self._blame(error, chosen, failed)
            raise
        with self._changed:
            self._ledger.end(chosen)
            self._changed.notify_all()
        return moved_nbytes

    def _fill(self, chosen: Plan, fill: Fill, stream: Copier | None) -> int:
        copy, placement = fill.copy, fill.placement
        memory, fresh, through_host = copy.memory, False, False
        if memory is None and copy.location != HOST:
            touched = fill.source is None and chosen.ahead
            memory, fresh = self._devices[copy.location].allocate(placement.nbytes, touched), True
        try:
            if fill.source is not None:
                own = stream if copy.location != HOST else None
                through_host = self._transfers.fill(placement, fill.source, copy, memory, own, fill.staged)
        except BaseException:
            if fresh:
                self._devices[copy.location].device.free(memory)
            raise
        with self._changed:
            self._ledger.filled(chosen, fill, memory, through_host)
            self._changed.notify_all()
        return placement.nbytes if fill.source is not None else 0

    def _blame(self, error: CopyFailedError, chosen: Plan, source: Copy | None) -> None:
        """Count a failed copy against its device; what only a lost device has is lost with it."""
        health = self._health[error.location]
        if chosen.ahead or error.location != chosen.location:  # else it is the task that failed there
            health.failed(str(error))
        if health.lost is None or source is None or source.location != error.location:
            return
        with self._changed:
            reason = f"only {error.device} had it, which was lost ({health.lost})"
            self._ledger.lose(source.placement, error.location, reason)
            self._changed.notify_all()

    def _refused(self, wanted: Sequence[Want], location: int, error: MemoryError) -> DoesNotFitError:
        text = too_large(wanted, self._ledger.stores[location])
        return DoesNotFitError(f"{text}; its driver said: {error}")
