"""Buffers: arrays in memory that the application and the server both map."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from polymux.core.dtype import DType
from polymux.segment import Buffer as CoreBuffer

if TYPE_CHECKING:
    from polymux.client.client import Client


class Buffer(CoreBuffer):
    """An array that tasks read and write, wherever they run.

    Made by `Queue.empty`, `Queue.zeros`, `Queue.array` and `Client.import_buffer`, not by hand. Also usable
    through the buffer protocol, ``numpy.asarray`` and DLPack. The application sees the segment's own memory:
    nothing is copied. Its valid copy may be in a device's memory after a task; it is brought home by `numpy`, and
    by every wait while a view of it lives.

    Notes
    -----
    Memory returns to the segment when the buffer is closed or collected, the tasks that use it are done and its last
    view is gone.
    """

    def __init__(self, client: Client, *args: Any) -> None:
        super().__init__(client, *args)
        self.client = client

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        code = DType(self.dtype_code)
        return np.dtype(np.uint16) if code is DType.BF16 and not _has_bfloat16() else code.to_numpy()

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the array (of the result's shape, once a task has reported one)."""
        return self.size * DType(self.dtype_code).itemsize

    def numpy(self, timeout: float | None = None) -> npt.NDArray[Any]:
        """Wait for the tasks that use the buffer and return its memory as an array, without a copy.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None waits for ever.

        Returns
        -------
        ndarray
            Of the buffer's shape and dtype, writable. While it lives, it is coherent after every `Task.wait`,
            `Queue.synchronize` and ``await``; write to it only when no task uses the buffer.

        Raises
        ------
        TimeoutError
            When the tasks are not done in time.
        ServerGone, Closed
        """
        self.bring_home(timeout)
        return self.raw_view().view(self.dtype).reshape(self.shape)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.numpy()
        if dtype is not None and array.dtype != np.dtype(dtype):
            if copy is False:
                raise ValueError(f"a buffer of {array.dtype} cannot become {np.dtype(dtype)} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise TypeError("len() of a buffer without dimensions")
        return shape[0]

    def __repr__(self) -> str:
        if not hasattr(self, "client"):
            return "<Buffer: could not be allocated>"
        if self.closed:
            return f"<Buffer {self.slot}: closed>"
        place = "on a device" if self.away else "at home"
        return f"<Buffer {self.slot}: {self.dtype}{list(self.shape)}, {place}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _has_bfloat16() -> bool:
    try:
        np.dtype("bfloat16")
    except TypeError:
        return False
    return True
