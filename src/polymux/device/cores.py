"""Cores of the host: which ones the process may use, and binding threads to them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from polymux.core.errors import DeviceUnavailable

_libc = ctypes.CDLL(None)


def allowed_cores() -> tuple[int, ...]:
    """Cores that this process may run on, ascending, by the kernel's numbers."""
    return tuple(sorted(os.sched_getaffinity(os.getpid())))


def bind_thread(cores: Sequence[int], native_id: int = 0) -> None:
    """Let a thread run on these cores only.

    Parameters
    ----------
    cores : sequence of int
    native_id : int
        The operating system's number of the thread; 0 is the calling thread.

    Raises
    ------
    DeviceUnavailable
        If the operating system refuses.
    """
    try:
        os.sched_setaffinity(native_id, cores)
    except OSError as error:
        raise DeviceUnavailable(
            f"threads cannot be bound to core {format_cores(cores)}: {error.strerror}; allow these cores to the"
            " process (taskset, cgroup cpuset) or name others"
        ) from error


def current_core() -> int:
    """Return the core that the calling thread runs on right now."""
    return int(_libc.sched_getcpu())


@contextmanager
def bound_to(core: int) -> Iterator[None]:
    """Hold the calling thread on one core meanwhile, so that threads on the other cores of its share meet no guest."""
    before = os.sched_getaffinity(0)
    if before == {core}:
        yield
        return
    bind_thread((core,))
    try:
        yield
    finally:
        bind_thread(tuple(before))


def parse_cores(text: str) -> tuple[int, ...]:
    """Read a list of cores: ``"0"``, ``"0-3"``, ``"0-1,4"``.

    Raises
    ------
    ValueError
        If it is no such list, or names a core twice.
    """
    cores: list[int] = []
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        if not (first.isdecimal() and (not dash or last.isdecimal())):
            raise ValueError(f"{item!r} is no core and no range of cores; write them like 0-3 or 0,2")
        begin, end = int(first), int(last or first)
        if end < begin:
            raise ValueError(f"the range {item!r} runs backwards; write {end}-{begin}")
        if end - begin >= 65536:
            raise ValueError(f"the range {item!r} is longer than any machine has cores")
        cores.extend(range(begin, end + 1))
    if len(set(cores)) != len(cores):
        raise ValueError(f"{text!r} names a core twice")
    return tuple(cores)


def format_cores(cores: Sequence[int]) -> str:
    """Write cores as `parse_cores` reads them: ``"0-1,4"``."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
