"""saxpy: ``y_out = a * x + y``, after the routine of the BLAS."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.dtype import DType
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import OpenCLPlan, ScalarArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import EXACT, launch, long, pointers, type_option
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "saxpy",
    inputs=(BufferParam("x", check.FLOATS), BufferParam("y", check.FLOATS)),
    outputs=(BufferParam("y_out", check.FLOATS),),
    scalars=(ScalarParam("a", DType.F64),),
    doc="y_out = a * x + y, element by element, product and sum rounded each (the same bits on every device). a is"
    " rounded to the buffers' dtype. y_out may be x or y.",
)
SOURCE = (
    EXACT
    + """
__kernel void saxpy(__global const T *x, __global const T *y, __global T *y_out, T a, long n) {
  long i = get_global_id(0);
  if (i < n) y_out[i] = a * x[i] + y[i];
}
"""
)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per element."""
    arrays = check.named(spec, buffers)
    check.require_same_dtypes(arrays)
    check.require_same_shapes(arrays)
    dtype, n = arrays["x"].dtype, check.size(arrays["x"])
    if n == 0:
        return OpenCLPlan()
    arguments = [*pointers(3), ScalarArgument(dtype, scalars["a"]), long(n)]
    return OpenCLPlan((launch("saxpy", arguments, (n,)),), (type_option(dtype),))


KERNEL = Definition(SPEC, (native("saxpy"), OpenCLSource(SOURCE, plan)))
