"""relu: negative elements become 0."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import launch, long, pointers, type_option
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "relu",
    inputs=(BufferParam("x", check.FLOATS),),
    outputs=(BufferParam("y", check.FLOATS),),
    doc="y = 0 where x < 0, else x, of any shape. y may be x.",
)
SOURCE = """
__kernel void relu(__global const T *x, __global T *y, long n) {
  const long i = get_global_id(0);
  if (i < n) y[i] = x[i] < 0 ? (T)0 : x[i];
}
"""


def plan(spec: KernelSpec, buffers: Sequence[BufferView], _scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per element."""
    arrays = check.named(spec, buffers)
    check.require_same_dtypes(arrays)
    check.require_same_shapes(arrays)
    n = check.size(arrays["x"])
    if n == 0:
        return OpenCLPlan()
    options = (type_option(arrays["x"].dtype),)
    return OpenCLPlan((launch("relu", [*pointers(2), long(n)], (n,)),), options)


KERNEL = Definition(SPEC, (native("relu"), OpenCLSource(SOURCE, plan)))
