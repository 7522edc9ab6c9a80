"""Cores of this process: moving all of its threads from one set of cores to another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from polymux.core.errors import DeviceUnavailable


def current_cores() -> tuple[int, ...]:
    """Cores that the calling thread may run on, ascending, by the kernel's numbers."""
    return tuple(sorted(os.sched_getaffinity(0)))


def move_to_cores(cores: Sequence[int]) -> None:
    """Let every thread of this process run on these cores only; threads that it starts later inherit that.

    Parameters
    ----------
    cores : sequence of int

    Raises
    ------
    DeviceUnavailable
        When the operating system refuses.
    """
    wanted = set(cores)
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        raise DeviceUnavailable(
            f"this process cannot run on cores {sorted(wanted)}: {error.strerror}; allow them to it (taskset, cgroup"
            " cpuset), or ask for a device with other cores"
        ) from error
    moved: set[str] = set()
    while (
        left := set(os.listdir("/proc/self/task")) - moved
    ):  # a thread that is not moved yet may start others
        for thread in left:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), wanted)
        moved |= left
