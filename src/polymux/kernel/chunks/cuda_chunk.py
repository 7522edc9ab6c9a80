"""Chunks on NVIDIA GPUs: cuBLAS through CuPy, with tensor cores where a lower precision is allowed.

cuBLAS rounds factors to TF32, half precision or bfloat16 by itself when its compute type says so, and sums in single
precision; the arrays stay as they are. A convolution is the product of the weights and the windows, laid out some
images at a time.

References
----------
NVIDIA: cuBLAS library, ``cublasGemmEx`` and ``cublasComputeType_t``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.kernel.builtin import operands as check
from polymux.kernel.chunks.methods import Precision, choose
from polymux.kernel.chunks.parts import ConvPart, conv_part, gemm_part

_R_32F, _R_64F = 0, 1  # cudaDataType
_COMPUTE_64F = 70  # cublasComputeType_t, as are the following
_COMPUTE: dict[Precision, int] = {"own": 68, "fp16": 74, "bf16": 75, "tf32": 77}
_NO_TRANSPOSE, _DEFAULT_ALGORITHM = 0, -1
COLUMNS_NBYTES = 256 << 20
"""Windows that are laid out at a time; a single image may have more."""


def multiply(a: Any, b: Any, c: Any, precision: Precision, scalars: check.Scalars) -> None:
    """Compute a part of ``c = a @ b`` of CuPy arrays.

    Raises
    ------
    InvalidRequest
        For operands, a range or a method that cannot be.
    """
    part = gemm_part({"a": a, "b": b, "c": c}, scalars)
    choose(int(scalars["method"]), "cuda", precision)
    _product(a[part.rows], b[:, part.columns], c[part.rows, part.columns], precision)


def convolve(x: Any, weight: Any, y: Any, precision: Precision, scalars: check.Scalars) -> None:
    """Compute a part of ``y = conv2d(x, weight)`` of CuPy arrays.

    Raises
    ------
    InvalidRequest
        For operands, a range or a method that cannot be.
    """
    import cupy

    part = conv_part({"x": x, "weight": weight, "y": y}, scalars)
    choose(int(scalars["method"]), "cuda", precision)
    if part.count * part.out_channels * part.positions == 0:
        return
    groups, depth, positions = part.groups, part.depth, part.positions
    per_group = part.out_channels // groups
    factors = weight[part.outputs].reshape(groups, per_group, depth)
    given, into = x[part.images, part.channels], y[part.images, part.outputs]
    at_once = max(1, COLUMNS_NBYTES // max(1, groups * depth * positions * x.dtype.itemsize))
    for first in range(0, part.count, at_once):
        columns = _windows(cupy, given[first : first + at_once], part)
        for image in range(len(columns)):
            result = into[first + image].reshape(groups, per_group, positions)
            for group in range(groups):
                _product(factors[group], columns[image, group], result[group], precision)


def _windows(cupy: Any, images: Any, part: ConvPart) -> Any:
    """Lay windows out as (image, group, depth, positions)."""
    h, w = part.h, part.w
    padded = cupy.pad(images, ((0, 0), (0, 0), (h.padding, h.padding), (w.padding, w.padding)))
    image, channel, row, column = padded.strides
    shape = (len(images), part.in_channels, h.kernel, w.kernel, h.positions, w.positions)
    strides = (
        image,
        channel,
        row * h.dilation,
        column * w.dilation,
        row * h.stride,
        column * w.stride,
    )
    windows = cupy.lib.stride_tricks.as_strided(padded, shape, strides)
    return windows.reshape(len(images), part.groups, part.depth, part.positions)


def _product(a: Any, b: Any, c: Any, precision: Precision) -> None:
    """``c = a @ b`` with rows of any distance: cuBLAS counts by columns, so it computes the transposed product."""
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    (m, k), n = a.shape, b.shape[1]
    if m * n == 0:
        return
    if k == 0:
        c[...] = 0
        return
    kinds = {"float32": (_R_32F, _COMPUTE[precision]), "float64": (_R_64F, _COMPUTE_64F)}
    found = kinds.get(a.dtype.name)
    if found is None or (precision != "own" and a.dtype.name != "float32"):
        raise InvalidRequest(
            f"a, b and c have dtype {a.dtype}; cuBLAS multiplies f4, and f8 in its own precision"
        )
    kind, compute = found
    one, zero = np.ones(1, a.dtype), np.zeros(1, a.dtype)
    rows = [array.strides[0] // array.itemsize for array in (b, a, c)]
    cublas.gemmEx(
        device.get_cublas_handle(),
        _NO_TRANSPOSE,
        _NO_TRANSPOSE,
        n,
        m,
        k,
        one.ctypes.data,
        b.data.ptr,
        kind,
        max(rows[0], n),
        a.data.ptr,
        kind,
        max(rows[1], k),
        zero.ctypes.data,
        c.data.ptr,
        kind,
        max(rows[2], n),
        compute,
        _DEFAULT_ALGORITHM,
    )
