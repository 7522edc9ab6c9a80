"""Short waits for a core: an event loop is to run as soon as something comes, also where every core computes."""

from __future__ import annotations

import ctypes
import platform

__all__ = ["SLICE_NS", "prefer_short_waits"]

SLICE_NS = 100_000
"""The shortest slice that the kernel gives."""
_RESET_ON_FORK = 1
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of sched_setattr and sched_getattr."""


class _Attributes(ctypes.Structure):
    """``struct sched_attr``, first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def prefer_short_waits() -> int:
    """Have the calling thread run soon after it wakes up.

    The kernel chooses, among threads that have had less than their part, the one whose slice would be over first. A
    thread with short slices comes before those with usual ones; it gets no more processor time than them, and is
    interrupted more often if it computes for long.

    Returns
    -------
    int, ns
        The thread's slice now; 0: the kernel does not tell (before Linux 6.12), and nothing has changed.

    Notes
    -----
    Needs no privilege. Threads and processes that the thread starts later have usual slices.

    References
    ----------
    Stoica, Abdel-Wahab: Earliest Eligible Virtual Deadline First, ODU TR-95-22 (1995). sched_setattr(2).
    """
    numbers = _CALLS.get(platform.machine())
    if numbers is None:
        return 0
    set_attributes, get_attributes = numbers
    call = ctypes.CDLL(None, use_errno=True).syscall
    attributes = _Attributes()
    size = ctypes.sizeof(attributes)
    if call(get_attributes, 0, ctypes.byref(attributes), size, 0):
        return 0
    attributes.size, attributes.runtime = size, SLICE_NS
    attributes.flags |= _RESET_ON_FORK
    if call(set_attributes, 0, ctypes.byref(attributes), 0):
        return 0
    call(get_attributes, 0, ctypes.byref(attributes), size, 0)
    return int(attributes.runtime)
