"""Where the thread is that hands pieces out: not on a core on which a device's own threads compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from polymux.coexec.units import Unit


@contextmanager
def kept_off(units: Collection[Unit], here: Callable[[], int]) -> Iterator[None]:
    """Keep the calling thread off cores of devices other than cpus meanwhile, if it is on one and there are others.

    Such a device computes on threads of its own, which the stream's thread starts and waits for. With the calling
    thread on the same core pieces of 5 ms often took 7 to 9 (PoCL, two cores, other work beside).

    Parameters
    ----------
    units : collection of Unit
        That compute.
    here : callable
        Says on which core the thread is.
    """
    theirs = {core for unit in units if not unit.place.device.startswith("cpu:") for core in unit.place.cores}
    if here() not in theirs:
        yield
        return
    allowed = os.sched_getaffinity(0)
    if not allowed - theirs:
        yield
        return
    os.sched_setaffinity(0, allowed - theirs)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
