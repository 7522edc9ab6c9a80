"""Memory of a device: the account of its capacity, and host pages that serve as the memory of a device."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading

import numpy as np
from numpy.typing import NDArray

from polymux.device.protocol import OutOfMemory

HUGE_PAGE_NBYTES = 2 << 20
_LIBC = ctypes.CDLL(None)


class CapacityAccount:
    """Counts what is taken of a device's memory; usable from any thread.

    Parameters
    ----------
    device : str
        Named in errors.
    capacity_nbytes : int
    """

    def __init__(self, device: str, capacity_nbytes: int) -> None:
        self._device = device
        self._capacity_nbytes = capacity_nbytes
        self._used_nbytes = 0
        self._lock = threading.Lock()

    @property
    def used_nbytes(self) -> int:
        """Sum of what is taken, in bytes."""
        return self._used_nbytes

    def take(self, nbytes: int) -> None:
        """Take `nbytes`.

        Raises
        ------
        OutOfMemory
            With the sizes.
        ValueError
            If `nbytes` is negative.
        """
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        with self._lock:
            free_nbytes = self._capacity_nbytes - self._used_nbytes
            if nbytes > free_nbytes:
                raise OutOfMemory(
                    f"{self._device} cannot allocate {nbytes} bytes: {free_nbytes} of"
                    f" {self._capacity_nbytes} are free"
                )
            self._used_nbytes += nbytes

    def give(self, nbytes: int) -> None:
        """Give `nbytes` back."""
        with self._lock:
            assert nbytes <= self._used_nbytes, "more given back than taken"
            self._used_nbytes -= nbytes


class HostPages:
    """Memory of a device that is really the host's: zeroed pages of its own for every allocation.

    Parameters
    ----------
    device : str
        Named in errors.
    capacity_nbytes : int
    """

    def __init__(self, device: str, capacity_nbytes: int) -> None:
        self._device = device
        self._account = CapacityAccount(device, capacity_nbytes)
        self._live: dict[int, int] = {}

    @property
    def used_nbytes(self) -> int:
        """Sum of the live allocations, in bytes."""
        return self._account.used_nbytes

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate.

        Returns
        -------
        ndarray of uint8, shape (nbytes,)
            Page-aligned and zeroed; the pages go back to the system with the last reference.

        Raises
        ------
        OutOfMemory
            When the capacity or the host's memory is used up.
        """
        self._account.take(nbytes)
        try:
            pages = _pages(nbytes)
        except (OSError, MemoryError) as error:
            self._account.give(nbytes)
            raise OutOfMemory(
                f"{self._device} cannot allocate {nbytes} bytes: the host refuses ({error})"
            ) from error
        self._live[id(pages)] = nbytes
        return pages

    def free(self, memory: NDArray[np.uint8]) -> None:
        """Give an allocation back.

        Raises
        ------
        ValueError
            If it is none, or was given back before.
        """
        nbytes = self._live.pop(id(memory), None)
        if nbytes is None:
            raise ValueError(f"this is no live allocation of {self._device}")
        self._account.give(nbytes)


def prefer_huge_pages(address: int, nbytes: int) -> None:
    """Ask the system for huge pages under memory that has not been touched; where it has none nothing changes.

    Parameters
    ----------
    address, nbytes : int
        Of memory of this process. What does not fill a huge page at its ends is left as it is.
    """
    start = -(-address // HUGE_PAGE_NBYTES) * HUGE_PAGE_NBYTES
    length = (address + nbytes - start) // HUGE_PAGE_NBYTES * HUGE_PAGE_NBYTES
    if length > 0:
        _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)


def host_memory_nbytes() -> int:
    """Size of the host's physical memory, or of the part that a cgroup leaves to this process, in bytes."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdecimal():
            total = min(total, int(text))
    return total


def _pages(nbytes: int) -> NDArray[np.uint8]:
    mapping = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE_NBYTES:
        with contextlib.suppress(OSError):  # the first touch of small pages costs most of a copy
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype=np.uint8, count=nbytes)
