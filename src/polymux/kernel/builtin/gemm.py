"""gemm: the matrix product ``c = alpha * op(a) @ op(b)``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import OpenCLPlan, ScalarArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin import tile
from polymux.kernel.builtin.opencl import launch, long, pointers, type_option
from polymux.kernel.definition import Definition
from polymux.kernel.team import Team

SPEC = KernelSpec(
    "gemm",
    inputs=(BufferParam("a", check.FLOATS), BufferParam("b", check.FLOATS)),
    outputs=(BufferParam("c", check.FLOATS),),
    scalars=(
        ScalarParam("alpha", DType.F64, 1.0),
        ScalarParam("transpose_a", DType.BOOL, False),
        ScalarParam("transpose_b", DType.BOOL, False),
    ),
    idempotent=True,
    doc="c = alpha * op(a) @ op(b), op(a) of shape (m, k), op(b) (k, n), c (m, n); op transposes where transpose_a or"
    " transpose_b is true. Of more dimensions all but the first are merged: (N, C, H, W) is an N x (C * H * W) matrix.",
)
SOURCE = f"""{tile.DEFINITIONS}
#define PREPARE
#define LOAD_A LOAD_TILE(a_tile, TILE_ROWS, a, row0, m, a_row, a_k)
#define LOAD_B LOAD_TILE(b_tile, TILE_COLUMNS, b, column0, n, b_column, b_k)
#define STORE(row, column, value) c[(row) * n + (column)] = alpha * (value)
__kernel __attribute__((reqd_work_group_size(8, 8, 1))) void gemm(
    __global const T *a, __global const T *b, __global T *c, long m, long n, long depth, long a_row, long a_k,
    long b_k, long b_column, T alpha) {{
{tile.BODY}}}
"""
PARALLEL_WORK = 1 << 21
"""Multiplications from which on a product is split over the team."""


def gemm(
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    *,
    alpha: float,
    transpose_a: bool,
    transpose_b: bool,
    team: Team,
) -> None:
    """NumPy's BLAS, on blocks of rows or columns of c."""
    m, n, k = _extents({"a": a, "b": b, "c": c}, transpose_a, transpose_b)
    left, right = _matrix(a, transpose_a), _matrix(b, transpose_b)
    c = _matrix(c, False)

    def rows(begin: int, end: int) -> None:
        np.matmul(left[begin:end], right, out=c[begin:end])
        if alpha != 1:
            c[begin:end] *= c.dtype.type(alpha)

    def columns(begin: int, end: int) -> None:
        np.matmul(left, right[:, begin:end], out=c[:, begin:end])
        if alpha != 1:
            c[:, begin:end] *= c.dtype.type(alpha)

    if m * n * k < PARALLEL_WORK:
        rows(0, m)
    elif m >= n:
        team.parallel_for(m, rows, align=8)
    else:
        team.parallel_for(n, columns, align=8)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-group per tile of c."""
    arrays = check.named(spec, buffers)
    transpose_a, transpose_b = bool(scalars["transpose_a"]), bool(scalars["transpose_b"])
    m, n, k = _extents(arrays, transpose_a, transpose_b)
    if m * n == 0:
        return OpenCLPlan()
    dtype = arrays["c"].dtype
    strides = [*((1, m) if transpose_a else (k, 1)), *((1, k) if transpose_b else (n, 1))]
    arguments = [
        *pointers(3),
        *(long(value) for value in (m, n, k, *strides)),
        ScalarArgument(dtype, scalars["alpha"]),
    ]
    return OpenCLPlan(
        (launch("gemm", arguments, tile.sizes(m, n, dtype), tile.LOCAL),),
        (type_option(dtype), *tile.options(dtype)),
    )


def _matrix(array: NDArray[Any], transposed: bool) -> NDArray[Any]:
    merged = array if array.ndim == 2 else array.reshape(len(array), math.prod(array.shape[1:]))
    return merged.T if transposed else merged


def _extents(arrays: Mapping[str, check.Array], transpose_a: bool, transpose_b: bool) -> tuple[int, int, int]:
    check.require_same_dtypes(arrays)
    shapes = {}
    for name in ("a", "b", "c"):
        shape = arrays[name].shape
        if len(shape) < 2:
            raise InvalidRequest(f"{name} has shape {shape}, expected 2 dimensions (rows, columns) or more")
        shapes[name] = (shape[0], math.prod(shape[1:]))
    m, k = shapes["a"][::-1] if transpose_a else shapes["a"]
    n = shapes["b"][0 if transpose_b else 1]
    for name, expected in (("b", (n, k) if transpose_b else (k, n)), ("c", (m, n))):
        if shapes[name] != expected:
            raise InvalidRequest(
                f"{name} has shape {arrays[name].shape}, expected {expected} (op(a) is {m} x {k})"
            )
    check.require_apart(arrays, "c", "a", "b")
    return m, n, k


KERNEL = Definition(SPEC, (PythonFunction(gemm, parallel=True), OpenCLSource(SOURCE, plan)))
