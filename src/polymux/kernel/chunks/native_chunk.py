"""Chunks in bfloat16 by the processor's own instructions (AVX512-BF16), in the calling thread.

Products are of ``cpp/kernels/bf16_product.cpp``: it rounds the factors while it packs them, and its results stay of
single precision. A convolution is the product of the weights and the windows, laid out some rows at a time.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.kernel.builtin.conv2d import correlate
from polymux.kernel.builtin.native import LIBRARY
from polymux.kernel.chunks.parts import ConvPart

Array = NDArray[Any]
_SIZES, _POINTER = ctypes.c_int64, ctypes.c_void_p


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    multiply_ = library.polymux_bf16_multiply
    multiply_.argtypes = [_SIZES] * 3 + [_POINTER, _SIZES] * 3
    return library


@cache
def is_there() -> bool:
    """Whether this processor has the instructions."""
    return bool(_library().polymux_bf16_is_there())


def multiply(a: Array, b: Array, c: Array) -> None:
    """``c = a @ b`` of float32; rows may be apart, their elements are neighbours.

    Raises
    ------
    InvalidRequest
        If the processor cannot do it.
    MemoryError
        If there is no memory for the packed factors.
    """
    if not is_there():
        raise InvalidRequest(
            "this processor has no instructions for bfloat16 (avx512_bf16); use another method"
        )
    a, b = (array if _is_plain(array) else np.ascontiguousarray(array) for array in (a, b))
    into = c if _is_plain(c) else np.empty(c.shape, c.dtype)
    operands = [(array.ctypes.data, array.strides[0] // array.itemsize) for array in (a, b, into)]
    arguments = [number for operand in operands for number in operand]
    if _library().polymux_bf16_multiply(*c.shape, a.shape[1], *arguments):
        raise MemoryError("no memory for the packed factors of a product in bfloat16")
    if into is not c:
        c[...] = into


def convolve(x: Array, weight: Array, y: Array, part: ConvPart) -> None:
    """Windows laid out as columns, some rows at a time; see `polymux.kernel.builtin.conv2d`."""
    correlate(x, weight, y, part.groups, part.h, part.w, _multiply_all)


def _multiply_all(a: Array, b: Array, c: Array) -> None:
    for one, other, into in zip(a, b, c, strict=True):
        multiply(one, other, into)


def _is_plain(array: Array) -> bool:
    """Whether the elements of a row are neighbours, and the rows follow each other."""
    rows, columns = array.strides
    return columns == array.itemsize and rows % array.itemsize == 0 and (rows > 0 or len(array) < 2)
