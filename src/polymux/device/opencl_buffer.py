"""Memory of OpenCL devices, in huge pages where the driver computes on the host's cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from polymux.device.own_memory import HUGE_PAGE_NBYTES, prefer_huge_pages

_COPIED_NBYTES = 1 << 20
"""Zeros of up to this size are copied in as the buffer is made: for small ones that is cheaper than a command."""


def new_zeroed_buffer(cl: Any, queue: Any, nbytes: int) -> Any:
    """Make a buffer of zeros; see `new_buffer`."""
    size = max(nbytes, 1)
    if size <= _COPIED_NBYTES:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        return cl.Buffer(queue.context, flags, hostbuf=np.zeros(size, np.uint8))
    buffer = new_buffer(cl, queue, size)
    cl.enqueue_fill_buffer(queue, buffer, np.uint8(0), 0, size)
    queue.finish()
    return buffer


def new_buffer(cl: Any, queue: Any, nbytes: int) -> Any:
    """Make a buffer.

    Parameters
    ----------
    cl : module
        pyopencl.
    queue : pyopencl.CommandQueue
        In its context; no other thread uses it meanwhile.
    nbytes : int

    Notes
    -----
    A driver for CPUs takes pages of 4 KiB from the system, whose first use costs more than the copy that fills them.
    It is asked where a large buffer lies before anybody has touched it, and the system for huge pages there.
    """
    size = max(nbytes, 1)
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, size=size)
    if size >= HUGE_PAGE_NBYTES and queue.device.type & cl.device_type.CPU:
        flags = cl.map_flags.READ | cl.map_flags.WRITE
        mapped, _ = cl.enqueue_map_buffer(queue, buffer, flags, 0, (size,), np.uint8)
        prefer_huge_pages(mapped.ctypes.data, size)
        mapped.base.release(queue)
    return buffer
