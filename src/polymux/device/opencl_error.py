"""Errors of OpenCL drivers, as what they mean for a task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError

_MAX_TEXT = 2000
_TEMPORARY = re.compile(r"\S*/tempfile_\w+\.cl")
"""Where PoCL keeps the source while it compiles it."""

_MEMORY = {"MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_HOST_MEMORY"}
_KERNEL = {"BUILD_PROGRAM_FAILURE", "COMPILE_PROGRAM_FAILURE", "LINK_PROGRAM_FAILURE"}
_KERNEL_PREFIXES = (
    "INVALID_ARG_",
    "INVALID_BINARY",
    "INVALID_BUILD_OPTIONS",
    "INVALID_GLOBAL_",
    "INVALID_KERNEL",
    "INVALID_PROGRAM",
    "INVALID_WORK_",
)


@contextmanager
def driver_errors(cl: Any, doing: str) -> Iterator[None]:
    """Turn pyopencl's errors into `LaunchError`.

    Parameters
    ----------
    cl : module
        pyopencl.
    doing : str
        What was being done, for the message.

    Raises
    ------
    LaunchError
        OUT_OF_MEMORY, KERNEL_FAILED (the program or how it is called) or DEVICE_FAILED, with the driver's text.
    """
    try:
        yield
    except cl.Error as error:
        raise launch_error(cl, doing, error) from error


def launch_error(cl: Any, doing: str, error: Exception) -> LaunchError:
    """Make the `LaunchError` of a pyopencl error; see `driver_errors`."""
    return LaunchError(_status(cl, error), f"{doing}: {driver_text(error)}")


def driver_text(error: Exception) -> str:
    """What the driver said; of a failed build the compiler's log."""
    text = str(error)
    _, found, log = text.partition("\nBuild on <")
    if found:
        log = log.partition(">:\n")[2].rpartition("\n(options: ")[0] or log
        text = log
    text = _TEMPORARY.sub("source", text.strip())
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ..."


def _status(cl: Any, error: Any) -> TaskStatus:
    name = cl.status_code.to_string(error.code, "%d")
    if name in _MEMORY:
        return TaskStatus.OUT_OF_MEMORY
    if name in _KERNEL or name.startswith(_KERNEL_PREFIXES):
        return TaskStatus.KERNEL_FAILED
    return TaskStatus.DEVICE_FAILED
