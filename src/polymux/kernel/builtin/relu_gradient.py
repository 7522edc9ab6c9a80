"""relu_gradient: the gradient of relu, backwards."""

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
    "relu_gradient",
    inputs=(BufferParam("x", check.FLOATS), BufferParam("dy", check.FLOATS)),
    outputs=(BufferParam("dx", check.FLOATS),),
    doc="dx = dy where x > 0, else 0; x is the input of relu, or its output, which gives the same. dx may be x or dy.",
)
SOURCE = """
__kernel void relu_gradient(__global const T *x, __global const T *dy, __global T *dx, long n) {
  const long i = get_global_id(0);
  if (i < n) dx[i] = x[i] > 0 ? dy[i] : (T)0;
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
    return OpenCLPlan((launch("relu_gradient", [*pointers(3), long(n)], (n,)),), options)


KERNEL = Definition(SPEC, (native("relu_gradient"), OpenCLSource(SOURCE, plan)))
