"""Lanes: where an application's tasks go, in order. `QueueLane` is one through the server.

`polymux.apps.native_lane` has those that call the same kernels directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from polymux.client import Buffer, Queue
from polymux.client.placed import PlacedArray, placed

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
        return placed(self.queue.array(array))

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
