"""Chunks by NumPy and its BLAS, in the calling thread."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.kernel.builtin.conv2d import correlate
from polymux.kernel.chunks.parts import ConvPart

Array = NDArray[Any]


def multiply(a: Array, b: Array, c: Array) -> None:
    """``c = a @ b``, of any NumPy type."""
    with np.errstate(
        all="ignore"
    ):  # what is not a number arrives in c, without a warning in the server's log
        np.matmul(a, b, out=c)


def convolve(x: Array, weight: Array, y: Array, part: ConvPart) -> None:
    """Windows laid out as columns, some rows at a time, then BLAS; see `polymux.kernel.builtin.conv2d`."""
    correlate(x, weight, y, part.groups, part.h, part.w)
