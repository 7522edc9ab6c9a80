"""Arrays that lie in memory shared with the server."""

from __future__ import annotations

from typing import Any

import numpy as np

from polymux.client.buffer import Buffer


class PlacedArray(np.ndarray[Any, Any]):
    """An array in memory shared with the server, which knows the buffer that it is, or lies in."""

    buffer: Buffer | None = None
    _span = range(0)
    """Addresses of the buffer."""

    def __array_finalize__(self, origin: object) -> None:
        span = getattr(origin, "_span", None)
        if span and self.__array_interface__["data"][0] in span:  # not a copy, or something computed from it
            self.buffer, self._span = getattr(origin, "buffer", None), span

    def whole(self) -> Buffer | None:
        """Return the buffer if this is all of it, with its shape, and not a part or something computed from it."""
        if self.buffer is None or self.buffer.closed or self.buffer.shape != self.shape:
            return None
        if not self.flags.c_contiguous or self.buffer.dtype != self.dtype:
            return None
        start = self.buffer.raw_view().__array_interface__["data"][0]
        return self.buffer if self.__array_interface__["data"][0] == start else None


def placed(buffer: Buffer) -> PlacedArray:
    """See a buffer as an array that knows it; waits for its tasks."""
    array = buffer.numpy().view(PlacedArray)
    array.buffer = buffer
    start = array.__array_interface__["data"][0]
    array._span = range(start, start + max(1, array.nbytes))
    return array
