"""What a kernel is told about its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest

MAX_BUFFERS = 16
"""Buffer references in one task descriptor."""

MAX_RANK = 8
"""Dimensions of one buffer."""

MAX_NBYTES = 2**63 - 1
"""Largest size that a descriptor can hold, in bytes."""


class Access(IntFlag):
    """What a task does with a buffer."""

    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class BufferView:
    """A buffer as one task sees it; a checked, private copy of what the client wrote.

    Parameters
    ----------
    slot : int
        Its number in the client's segment.
    dtype : DType
    shape : tuple of int
        Elements per dimension, row-major; ``()`` for a scalar.
    nbytes : int
        Size of the elements in bytes.
    access : Access
    offset : int
        Where it begins in the segment's data, in bytes.
    """

    slot: int
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    access: Access
    offset: int


def shape_nbytes(shape: Sequence[int], dtype: DType) -> int:
    """Size of an array in bytes.

    Parameters
    ----------
    shape : sequence of int
        Elements per dimension; a zero anywhere makes the array empty.
    dtype : DType

    Raises
    ------
    InvalidRequest
        For a negative dimension, more than `MAX_RANK` of them, or a size above `MAX_NBYTES`. A zero does not
        excuse the other dimensions: their product must fit as well, as in NumPy.
    """
    if len(shape) > MAX_RANK:
        raise InvalidRequest(
            f"shape {tuple(shape)} has {len(shape)} dimensions; at most {MAX_RANK} are allowed"
        )
    count, empty = 1, False
    for extent in shape:
        if extent < 0:
            raise InvalidRequest(f"shape {tuple(shape)} has the negative extent {extent}; give 0 or more")
        if extent == 0:
            empty = True
        else:
            count *= extent
    nbytes = count * dtype.itemsize
    if nbytes > MAX_NBYTES:
        raise InvalidRequest(
            f"shape {tuple(shape)} of {dtype.name_short} takes {nbytes} bytes; at most {MAX_NBYTES} fit"
        )
    return 0 if empty else nbytes
