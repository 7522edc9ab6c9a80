"""gemv: the matrix-vector product ``y = alpha * op(a) @ x``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.implementation import OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import OpenCLLaunch, OpenCLPlan, ScalarArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.opencl import launch, long, pointers, type_option
from polymux.kernel.definition import Definition
from polymux.kernel.team import Team

SPEC = KernelSpec(
    "gemv",
    inputs=(BufferParam("a", check.FLOATS), BufferParam("x", check.FLOATS)),
    outputs=(BufferParam("y", check.FLOATS),),
    scalars=(ScalarParam("alpha", DType.F64, 1.0), ScalarParam("transpose", DType.BOOL, False)),
    idempotent=True,
    doc="y = alpha * op(a) @ x, op(a) of shape (m, k), x (k,), y (m,); op transposes where transpose is true.",
)
SOURCE = """
#define LOCAL 64
// One work-group per row of a (m, k).
__kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1))) void gemv_rows(
    __global const T *a, __global const T *x, __global T *y, long m, long k, T alpha) {
  __local T lanes[LOCAL];
  const long row = get_group_id(0);
  const int lane = get_local_id(0);
  T sum = 0;
  for (long base = 0; base < k; base += LOCAL) {
    const long i = base + lane;
    if (i < k) sum += a[row * k + i] * x[i];
  }
  lanes[lane] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int half_count = LOCAL / 2; half_count > 0; half_count /= 2) {
    if (lane < half_count) lanes[lane] += lanes[lane + half_count];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (lane == 0) y[row] = alpha * lanes[0];
}

// One work-item per column of a (k, m).
__kernel void gemv_columns(__global const T *a, __global const T *x, __global T *y, long m, long k, T alpha) {
  const long column = get_global_id(0);
  if (column >= m) return;
  T sum = 0;
  for (long i = 0; i < k; ++i) sum += a[i * m + column] * x[i];
  y[column] = alpha * sum;
}
"""
LOCAL = 64
PARALLEL_WORK = 1 << 19
"""Multiplications from which on a product is split over the team."""


def gemv(
    a: NDArray[Any], x: NDArray[Any], y: NDArray[Any], *, alpha: float, transpose: bool, team: Team
) -> None:
    """NumPy's BLAS, on blocks of rows of op(a)."""
    m, k = _extents({"a": a, "x": x, "y": y}, transpose)
    left = a.T if transpose else a

    def rows(begin: int, end: int) -> None:
        np.matmul(left[begin:end], x, out=y[begin:end])
        if alpha != 1:
            y[begin:end] *= y.dtype.type(alpha)

    if m * k < PARALLEL_WORK:
        rows(0, m)
    else:
        team.parallel_for(m, rows, align=16)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """A work-group or a work-item per element of y, as the elements of a lie."""
    arrays = check.named(spec, buffers)
    transpose = bool(scalars["transpose"])
    m, k = _extents(arrays, transpose)
    if m == 0:
        return OpenCLPlan()
    dtype = arrays["y"].dtype
    arguments = [*pointers(3), long(m), long(k), ScalarArgument(dtype, scalars["alpha"])]
    launched = (
        launch("gemv_columns", arguments, (m,), (LOCAL,))
        if transpose
        else OpenCLLaunch("gemv_rows", tuple(arguments), (m * LOCAL,), (LOCAL,))
    )
    return OpenCLPlan((launched,), (type_option(dtype),))


def _extents(arrays: Mapping[str, check.Array], transpose: bool) -> tuple[int, int]:
    check.require_same_dtypes(arrays)
    check.require_rank(arrays, "a", 2, "(rows, columns)")
    m, k = arrays["a"].shape[::-1] if transpose else arrays["a"].shape
    check.require_shape(arrays, "x", (k,), f"op(a) is {m} x {k}")
    check.require_shape(arrays, "y", (m,), f"op(a) is {m} x {k}")
    check.require_apart(arrays, "y", "a", "x")
    return m, k


KERNEL = Definition(SPEC, (PythonFunction(gemv, parallel=True), OpenCLSource(SOURCE, plan)))
