"""Buffers for what the parts of a cut model hand on, which all requests of a queue have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polymux.client import Buffer
from polymux.core.dtype import DType

__all__ = ["HandedOn"]


class HandedOn:
    """The buffers of one queue, for tensors of one set of shapes at a time.

    Parameters
    ----------
    dtypes : mapping of str to DType
        The tensors, by name.
    allocate : callable
        Takes a shape and a dtype.

    Notes
    -----
    The tasks of a queue run in order, so that the next request may write a buffer as soon as it is submitted.
    """

    def __init__(
        self, dtypes: Mapping[str, DType], allocate: Callable[[tuple[int, ...], DType], Buffer]
    ) -> None:
        self._dtypes = dtypes
        self._allocate = allocate
        self._buffers: dict[str, Buffer] = {}
        self._shapes: Mapping[str, tuple[int, ...]] = {}

    def of(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Buffer]:
        """Return the buffers for these shapes; those of others go when their tasks have ended.

        Raises
        ------
        SegmentFull
            When there is no room for them.
        """
        if self._shapes is not shapes:
            self.close()
            try:
                for name, dtype in self._dtypes.items():
                    self._buffers[name] = self._allocate(shapes[name], dtype)
            except BaseException:
                self.close()
                raise
            self._shapes = shapes
        return self._buffers

    def close(self) -> None:
        """Give them back; they can be had again."""
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers, self._shapes = {}, {}
