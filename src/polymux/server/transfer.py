"""Copies between the memories of devices and the segments: which way, and the time that they took.

A copy takes one leg where it can: between the host and a device, between devices one of which the host can address,
or between peers. Otherwise it goes through the host's bytes of the buffer in chunks, out of one device while the chunk
before enters the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic_ns
from typing import Any

import numpy as np

from polymux.core.errors import PolymuxError
from polymux.device.protocol import LaunchError
from polymux.segment import SegmentError
from polymux.server.placement import HOST, Allocator, Bytes, Copier, Copy, Placement

CHUNK_NBYTES = 4 << 20
"""What one device has given before the other begins to take it."""

PAGE_NBYTES = 4096

PEER, ONE_LEG, TWO_LEGS, WORSE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy between two memories.

    Parameters
    ----------
    source, target : int
        Locations; 0 is the host.
    source_name, target_name
        "host", or the device's name.
    queue : str
        For whose task it was made.
    owner : str
        Whose buffer it was.
    nbytes : int
    start_ns, end_ns : int
        CLOCK_MONOTONIC.
    """

    source: int
    target: int
    source_name: str
    target_name: str
    queue: str
    owner: str
    nbytes: int
    start_ns: int
    end_ns: int

    @property
    def into(self) -> bool:
        """Whether it went into a device."""
        return self.target != HOST

    @property
    def device(self) -> str:
        """The device that it went into, or the one that it came from."""
        return self.target_name if self.into else self.source_name


Observer = Callable[[Transfer], None]


class CopyFailedError(PolymuxError):
    """A copy between two memories failed.

    Parameters
    ----------
    location : int
        Of the device that failed.
    device : str
        Its name.
    message : str
        What it or its driver said.
    """

    def __init__(self, location: int, device: str, message: str) -> None:
        super().__init__(location, device, message)
        self.location = location
        self.device = device
        self.message = message

    def __str__(self) -> str:
        return f"a copy failed on {self.device}: {self.message}"


class DeviceMemory:
    """One device's own memory: allocation, and a stream for copies that other threads need.

    Notes
    -----
    The copier is a stream of its own. It is used by one thread at a time, not by one thread only.
    """

    def __init__(self, location: int, name: str, device: Allocator, copier: Copier) -> None:
        self.location = location
        self.name = name
        self.device = device
        self.addressable = False
        """Whether the host can address it, as far as is known from what has been allocated."""
        self._copier = copier
        self._copying = threading.Lock()

    def allocate(self, nbytes: int, touched: bool = False) -> Any:
        """Take memory; `MemoryError` when the device refuses.

        Parameters
        ----------
        nbytes : int
        touched : bool
            Have the system put pages under it now: the first touch costs more than a copy.
        """
        memory = self.device.allocate(nbytes)
        host = self.device.host_bytes(memory)
        self.addressable = host is not None
        if host is not None and touched:
            host[::PAGE_NBYTES] = 0
        return memory

    @contextlib.contextmanager
    def using(self, stream: Copier | None) -> Iterator[Copier]:
        """Give the calling thread's own stream, or else the copier for as long as the ``with`` block lasts."""
        if stream is not None:
            with self._blamed():
                yield stream
            return
        with self._copying, self._blamed():
            yield self._copier

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """Make what goes wrong with this device's stream an error that names it."""
        try:
            yield
        except (LaunchError, OSError, RuntimeError) as error:
            text = error.message if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}"
            raise CopyFailedError(self.location, self.name, text) from error


class Transfers:
    """All copies that are made; used by any thread.

    Parameters
    ----------
    observe : callable
        Told of every copy that was made, by the thread that made it.
    """

    def __init__(self, observe: Observer) -> None:
        self.devices: dict[int, DeviceMemory] = {}
        self.failing: set[int] = set()
        """Devices from which a copy has failed: they are the last to be copied from."""
        self._observe = observe

    def route(self, source: Copy, location: int) -> tuple[int, bool]:
        """Tell what a copy costs in legs, and whether it goes through the host's bytes; see `placing.Route`."""
        failing = WORSE if source.location in self.failing else 0
        if HOST in (source.location, location):
            return failing + ONE_LEG, False
        giver, taker = self.devices[source.location], self.devices[location]
        if taker.device.is_peer(giver.device):
            return failing + PEER, False
        legs = ONE_LEG if giver.addressable or taker.addressable else TWO_LEGS
        return failing + legs, legs == TWO_LEGS

    def blame(self, source: Copy | None, error: CopyFailedError) -> bool:
        """After a device could not be read: whether somebody else has the content; that one is preferred from now."""
        if source is None or source.location != error.location or error.location in self.failing:
            return False
        self.failing.add(error.location)
        copies = source.placement.copies.values()
        return any(copy.valid and copy.location not in self.failing for copy in copies)

    def fill(
        self,
        placement: Placement,
        source: Copy,
        target: Copy,
        memory: Any,
        stream: Copier | None,
        staged: bool = False,
    ) -> bool:
        """Copy a buffer's content from one place to another.

        Parameters
        ----------
        placement : Placement
        source, target : Copy
        memory : Memory
            The target's.
        stream : Copier or None
            The calling thread's own stream of the target's device, or of the source's when the target is the host.
        staged : bool
            Whether the host's bytes of the buffer may be used on the way.

        Returns
        -------
        bool
            Whether the host's bytes of the buffer are the same now.
        """
        with self._timed(placement, source.location, target.location) as told:
            if source.location == HOST:
                host = host_bytes(placement)
                if host is not None:
                    self._copy_in(target.location, memory, host, stream)
                    told.append(host.nbytes)
                return False
            if target.location == HOST:
                host = host_bytes(placement)
                if host is not None:
                    self._copy_out(source.location, source.memory, host, stream)
                    told.append(host.nbytes)
                return False
            if self._copy_directly(placement.nbytes, source, target.location, memory, stream):
                told.append(placement.nbytes)
                return False
        host = host_bytes(placement) if staged else None
        return self._copy_in_chunks(placement, source, target.location, memory, stream, host)

    def _copy_directly(
        self, nbytes: int, source: Copy, location: int, memory: Any, stream: Copier | None
    ) -> bool:
        """Copy in one leg between devices; False when there is no such way."""
        giver, taker = self.devices[source.location], self.devices[location]
        if taker.device.is_peer(giver.device):
            with contextlib.suppress(CopyFailedError):  # of which of the two? Copy by copy it comes out
                with taker.using(stream) as copier:
                    copier.copy_peer(memory, giver.device, source.memory, nbytes)
                return True
        from_bytes = giver.device.host_bytes(source.memory)
        if from_bytes is not None:
            self._copy_in(location, memory, from_bytes[:nbytes], stream)
            return True
        to_bytes = taker.device.host_bytes(memory)
        if to_bytes is not None:
            self._copy_out(source.location, source.memory, to_bytes[:nbytes], None)
            return True
        return False

    def _copy_in_chunks(
        self,
        placement: Placement,
        source: Copy,
        location: int,
        memory: Any,
        stream: Copier | None,
        host: Bytes | None,
    ) -> bool:
        through_host = host is not None
        if host is None:  # not planned for, or freed meanwhile: they may be another buffer's by now
            host = np.empty(placement.nbytes, np.uint8)
        leaving = _Leaving(self, placement, source, host)
        try:
            with (
                self._timed(placement, HOST, location) as told,
                self.devices[location].using(stream) as copier,
            ):
                for begin, end in leaving.chunks():
                    copier.copy_in(memory, host[begin:end], begin)
                told.append(host.nbytes)
        finally:
            leaving.stop()
        return through_host

    def _copy_in(self, location: int, memory: Any, host: Bytes, stream: Copier | None) -> None:
        with self.devices[location].using(stream) as copier:
            copier.copy_in(memory, host)

    def _copy_out(self, location: int, memory: Any, host: Bytes, stream: Copier | None) -> None:
        with self.devices[location].using(stream) as copier:
            copier.copy_out(memory, host)

    @contextlib.contextmanager
    def _timed(self, placement: Placement, source: int, target: int) -> Iterator[list[int]]:
        """Report the copy whose bytes the ``with`` block puts into the list; none, when it puts none there."""
        told: list[int] = []
        start_ns = monotonic_ns()
        yield told
        end_ns = monotonic_ns()
        for nbytes in told:
            names = self._name(source), self._name(target)
            self._observe(
                Transfer(source, target, *names, placement.queue, placement.owner, nbytes, start_ns, end_ns)
            )

    def _name(self, location: int) -> str:
        return "host" if location == HOST else self.devices[location].name


class _Leaving:
    """The first leg of a copy in chunks, in a thread of its own."""

    def __init__(self, transfers: Transfers, placement: Placement, source: Copy, host: Bytes) -> None:
        self._transfers = transfers
        self._placement = placement
        self._source = source
        self._host = host
        self._stopped = False
        self._ready: SimpleQueue[tuple[int, int] | BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="polymux-copy-out", daemon=True)
        self._thread.start()

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Give the ranges of bytes that have arrived, one after the other; raises what went wrong."""
        while (item := self._ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def stop(self) -> None:
        """Wait for its end, which comes early when nobody wants the rest."""
        self._stopped = True
        self._thread.join()

    def _run(self) -> None:
        transfers, source, host = self._transfers, self._source, self._host
        try:
            with (
                transfers._timed(self._placement, source.location, HOST) as told,
                transfers.devices[source.location].using(None) as copier,
            ):
                for begin in range(0, host.nbytes, CHUNK_NBYTES):
                    if self._stopped:
                        return
                    end = min(begin + CHUNK_NBYTES, host.nbytes)
                    copier.copy_out(source.memory, host[begin:end], begin)
                    self._ready.put((begin, end))
                told.append(host.nbytes)
        except BaseException as error:
            self._ready.put(error)
        finally:
            self._ready.put(None)


def host_bytes(placement: Placement) -> Bytes | None:
    """Give the host's bytes of a buffer that lives; None: it was freed, and they may be another buffer's by now."""
    for home in list(placement.homes):
        try:
            home.memory.buffer(home.slot, home.generation)
            return home.memory.view(home.offset, placement.nbytes)
        except SegmentError:
            continue
    return None
