"""Task queues: where an application issues its work, in order."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from polymux.client.buffer import Buffer
from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.segment import Queue as CoreQueue
from polymux.segment import Task

if TYPE_CHECKING:
    from polymux.client.client import Client

OnFull = Literal["wait", "raise"]


class Queue(CoreQueue):
    """Tasks that run in order; independent queues are independent work. Made by `Client.queue`.

    Parameters
    ----------
    client : Client
    name : str, optional
        Shown to the operator; the queue's id by default.
    priority : int
        Higher runs first among the queues of one stream.
    device : str, optional
        Pin to this device ("cpu:0"); by default the server decides, and may move the queue while it runs.
    stream : str, optional
        Pin to this stream ("cpu:0/1") of a device, and so to the compute units that it has; `Client.status` lists them.
    capacity : int
        Tasks in flight at most; a power of two from 16 to 65536.
    on_full : {"wait", "raise"}
        What `submit` does when `capacity` tasks are in flight: wait for one to end, or raise `QueueFull`.
    memory_nbytes : int
        How much data its tasks use, about, in bytes: a hint for the choice of a device with room for it. 0: not known.
    """

    def __init__(
        self,
        client: Client,
        name: str | None = None,
        *,
        priority: int = 0,
        device: str | None = None,
        stream: str | None = None,
        capacity: int = 1024,
        on_full: OnFull = "wait",
        memory_nbytes: int = 0,
    ) -> None:
        if on_full not in ("wait", "raise"):
            raise InvalidRequest(f"on_full={on_full!r}: give 'wait' or 'raise'")
        if not isinstance(memory_nbytes, (int, np.integer)) or not 0 <= memory_nbytes < 1 << 62:
            raise InvalidRequest(
                f"memory_nbytes={memory_nbytes!r:.40}: give a number of bytes, 0 if it is not known"
            )
        if stream is not None and ("/" not in stream or device not in (None, stream.rpartition("/")[0])):
            raise InvalidRequest(
                f"stream={stream!r:.40} with device={device!r:.40}: give a stream such as 'cpu:0/1', alone or with its"
                " own device"
            )
        super().__init__(
            client,
            name or "",
            priority,
            stream or device or "",
            capacity,
            on_full == "raise",
            int(memory_nbytes),
        )
        self.client = client

    def empty(
        self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32, *, shareable: bool = False
    ) -> Buffer:
        """Allocate a buffer whose content is undefined.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : dtype
        shareable : bool
            On pages of its own, so that it can be exported; buffers of 64 KiB and more are anyway.

        Raises
        ------
        SegmentFull
            When the segment has no room for it.
        InvalidRequest
            For an impossible shape or a dtype that buffers cannot have.
        """
        return Buffer(self.client, int(DType.from_numpy(dtype)), _shape_of(shape), shareable)

    def zeros(
        self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32, *, shareable: bool = False
    ) -> Buffer:
        """Allocate a buffer of zeros; see `empty`."""
        buffer = self.empty(shape, dtype, shareable=shareable)
        buffer.raw_view()[...] = 0
        return buffer

    def array(self, array: npt.ArrayLike, *, shareable: bool = False) -> Buffer:
        """Allocate a buffer with a copy of an array; see `empty`."""
        source = np.asarray(array)
        buffer = self.empty(source.shape, source.dtype, shareable=shareable)
        buffer.raw_view().view(source.dtype).reshape(source.shape)[...] = source
        return buffer

    def write(self, buffer: Buffer, array: npt.ArrayLike) -> Task:
        """Issue a transfer of an array's present content into a buffer, in order with the queue's other tasks.

        Parameters
        ----------
        buffer : Buffer
        array : array_like
            Of the buffer's shape; converted to its dtype when that loses nothing. Copied before this returns, so it
            may be changed at once.

        Returns
        -------
        Task
        """
        source = np.asarray(array)
        if source.shape != buffer.shape or not np.can_cast(source.dtype, buffer.dtype, "same_kind"):
            raise InvalidRequest(
                f"an array {source.dtype}{list(source.shape)} does not fit a buffer"
                f" {buffer.dtype}{list(buffer.shape)}; give the same shape and a dtype that converts safely"
            )
        staging = self.array(source.astype(buffer.dtype, copy=False))
        return self.submit("copy", [staging], [buffer])

    def read(self, buffer: Buffer, out: npt.NDArray[Any] | None = None) -> Transfer:
        """Issue a transfer of a buffer's content at this point of the queue into application memory.

        Parameters
        ----------
        buffer : Buffer
        out : ndarray, optional
            Of the buffer's shape and dtype; filled when the transfer is waited for. A new one by default.

        Returns
        -------
        Transfer
            Its `result` is the array.
        """
        if out is not None and (out.shape != buffer.shape or out.dtype != buffer.dtype):
            raise InvalidRequest(
                f"out is {out.dtype}{list(out.shape)}, the buffer {buffer.dtype}{list(buffer.shape)}; give an array of"
                " the same shape and dtype"
            )
        staging = self.empty(buffer.shape, buffer.dtype)
        return Transfer(self.submit("copy", [buffer], [staging]), staging, out)

    def __repr__(self) -> str:
        if not hasattr(self, "client"):
            return "<Queue: could not be opened>"
        state = "closed" if self.closed else f"{self.in_flight} in flight"
        return f"<Queue {self.name}: {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the queue's tasks and close it; after an error in the block, close it at once."""
        try:
            if kind is None and not self.closed:
                self.synchronize()
        finally:
            self.close()


class Transfer:
    """A transfer of a buffer into application memory under way (`Queue.read`)."""

    def __init__(self, task: Task, staging: Buffer, out: npt.NDArray[Any] | None) -> None:
        self.task = task
        self._staging = staging
        self._out = out
        self._delivered = False

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the array is filled; raises like `Task.wait`."""
        self.result(timeout)

    def result(self, timeout: float | None = None) -> npt.NDArray[Any]:
        """Wait; the array."""
        self.task.wait(timeout)
        if not self._delivered:
            content = self._staging.numpy()
            if self._out is None:
                self._out = content.copy()
            else:
                self._out[...] = content
            self._delivered = True
            del content
            self._staging.close()
        assert self._out is not None
        return self._out

    def done(self) -> bool:
        """Whether waiting would not block."""
        return self.task.done()

    def error(self, timeout: float | None = None) -> Exception | None:
        """Wait; the exception that the transfer ended with, or None."""
        return self.task.error(timeout)

    def __await__(self) -> Any:
        yield from self.task.__await__()
        return self.result()


def _shape_of(shape: int | tuple[int, ...]) -> list[int]:
    extents = [shape] if isinstance(shape, (int, np.integer)) else list(shape)
    extent: object
    for extent in extents:
        if not isinstance(extent, (int, np.integer)) or not 0 <= extent < 1 << 62:
            raise InvalidRequest(f"shape {shape!r}: {extent!r} is no possible extent; give integers >= 0")
    return [int(extent) for extent in extents]
