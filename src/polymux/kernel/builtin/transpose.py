"""transpose: swaps the last two axes, for any dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import bits_option, launch, long, pointers
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "transpose",
    inputs=(BufferParam("x"),),
    outputs=(BufferParam("y"),),
    idempotent=True,
    doc="y = x with its last two axes swapped: (..., rows, columns) to (..., columns, rows). Any dtype.",
)
SOURCE = """
#define SIDE 16
// A tile goes through local memory, so that both the reads and the writes of a row of items are contiguous.
__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void transpose(
    __global const T *x, __global T *y, long rows, long columns) {
  __local T tile[SIDE][SIDE + 1];
  const int i = get_local_id(0), j = get_local_id(1);
  const long column0 = (long)get_group_id(0) * SIDE, row0 = (long)get_group_id(1) * SIDE;
  x += get_global_id(2) * rows * columns;
  y += get_global_id(2) * rows * columns;
  if (row0 + j < rows && column0 + i < columns) tile[j][i] = x[(row0 + j) * columns + column0 + i];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (column0 + j < columns && row0 + i < rows) y[(column0 + j) * rows + row0 + i] = tile[i][j];
}
"""


def plan(spec: KernelSpec, buffers: Sequence[BufferView], _scalars: check.Scalars) -> OpenCLPlan:
    """One work-group per tile of 16 x 16."""
    arrays = check.named(spec, buffers)
    check.require_same_dtypes(arrays)
    shape = arrays["x"].shape
    if len(shape) < 2:
        raise InvalidRequest(f"x has shape {shape}, expected 2 or more dimensions (..., rows, columns)")
    *batch, rows, columns = shape
    check.require_shape(arrays, "y", (*batch, columns, rows), "x with its last two axes swapped")
    check.require_apart(arrays, "y", "x")
    if check.size(arrays["x"]) == 0:
        return OpenCLPlan()
    arguments = [*pointers(2), long(rows), long(columns)]
    launched = launch("transpose", arguments, (columns, rows, math.prod(batch)), (16, 16, 1))
    return OpenCLPlan((launched,), (bits_option(arrays["x"].dtype),))


KERNEL = Definition(SPEC, (native("transpose"), OpenCLSource(SOURCE, plan)))
