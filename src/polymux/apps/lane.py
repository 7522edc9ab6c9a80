"""Lanes: where an application's tasks go, in order. `QueueLane` is one through the server.

`polymux.apps.native_lane` has those that call the same kernels directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from polymux.client import Buffer, Queue

Array = npt.NDArray[Any]


class Lane(Protocol):
    """Tasks that run in order on buffers; lanes are independent of each other.

    Notes
    -----
    A buffer of one lane may be used by the tasks of another one of the same kind, once the first has been waited for.
    """

    def array(self, array: Array, /) -> Any:
        """Make a buffer with a copy of an array's content, which tasks may change."""
        ...

    def input(self, array: Array, /) -> Any:
        """Make a buffer of an array's content that tasks only read: without a copy where the array already lies well.

        The array must not change while the buffer is in use.
        """
        ...

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, /) -> Any:
        """Make a buffer whose content is undefined."""
        ...

    def submit(
        self, kernel: str, inputs: Sequence[Any] = (), outputs: Sequence[Any] = (), **scalars: Any
    ) -> object:
        """Run a kernel on buffers after everything that was submitted before; returns at once where the lane can."""
        ...

    def read(self, buffer: Any, /) -> Array:
        """Wait for the lane and return a buffer's content.

        Returns
        -------
        ndarray
            Valid while the lane is open; perhaps the buffer's own memory, so it changes with later tasks.
        """
        ...

    def wait(self) -> None:
        """Wait for everything that was submitted; raises the first failure."""
        ...


class PlacedArray(np.ndarray[Any, Any]):
    """An array in memory shared with the server, which knows the buffer that it is, or lies in."""

    buffer: Buffer | None = None

    def __array_finalize__(self, origin: object) -> None:
        self.buffer = getattr(origin, "buffer", None)

    def whole(self) -> Buffer | None:
        """Return the buffer if this is all of it, with its shape, and not a part or something computed from it."""
        if self.buffer is None or self.buffer.shape != self.shape or not self.flags.c_contiguous:
            return None
        start = self.buffer.raw_view().__array_interface__["data"][0]
        return self.buffer if self.__array_interface__["data"][0] == start else None


class QueueLane:
    """A lane through the server: a task queue.

    Parameters
    ----------
    queue : Queue
        It stays the caller's, who closes it.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.array = queue.array
        self.empty = queue.empty
        self.submit = queue.submit
        self.wait = queue.synchronize

    def place(self, array: Array) -> PlacedArray:
        """Copy an array into memory shared with the server, so that `input` needs no copy."""
        buffer = self.queue.array(array)
        placed = buffer.numpy().view(PlacedArray)
        placed.buffer = buffer
        return placed

    def input(self, array: Array, /) -> Buffer:
        """Make a buffer that tasks only read; see `Lane`."""
        buffer = array.whole() if isinstance(array, PlacedArray) else None
        if buffer is not None and buffer.client is self.queue.client:
            return buffer
        return self.queue.array(array)

    def read(self, buffer: Buffer, /) -> Array:
        """Wait and return the content, which is the buffer's own memory; see `Lane`."""
        self.queue.synchronize()
        return buffer.numpy()
