"""How a task ended; the numbers are part of the C interface (``include/polymux.h``)."""

from __future__ import annotations

from enum import IntEnum


class TaskStatus(IntEnum):
    """Outcome of one task, as written into its completion."""

    OK = 0
    """It ran."""
    INVALID_TASK = 1
    """Its descriptor breaks the layout's rules."""
    UNKNOWN_KERNEL = 2
    """No kernel of that name or number is registered."""
    BAD_ARGUMENT = 3
    """The kernel does not take this number, type, shape or value of arguments."""
    BAD_BUFFER = 4
    """A buffer is freed, foreign, or does not lie where the descriptor says."""
    NO_DEVICE = 5
    """No device that may run it has an implementation, or none is left."""
    OUT_OF_MEMORY = 6
    """Its buffers do not fit into the device's memory, even after spilling."""
    KERNEL_FAILED = 7
    """The kernel raised or returned a failure."""
    KERNEL_CRASHED = 8
    """The worker process that ran the kernel died."""
    CANCELLED = 9
    """Its queue or its session was closed before it ran."""
    DEVICE_FAILED = 10
    """The device or its driver failed while it ran."""
    OUTPUT_TOO_SMALL = 11
    """The result does not fit into the output buffer that was given."""
    REJECTED = 12
    """The policy did not admit it."""
