"""bias_add: one number per channel added to (a batch of) arrays."""

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
from polymux.kernel.builtin.opencl import launch, long, pointers, type_option
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "bias_add",
    inputs=(BufferParam("x", check.FLOATS), BufferParam("bias", check.FLOATS)),
    outputs=(BufferParam("y", check.FLOATS),),
    doc="x (N, C, ...) + bias (C): bias[c] is added to all elements x[:, c]. y may be x.",
)
SOURCE = """
__kernel void bias_add(__global const T *x, __global const T *bias, __global T *y, long n, long channels, long inner) {
  const long i = get_global_id(0);
  if (i < n) y[i] = x[i] + bias[i / inner % channels];
}
"""


def plan(spec: KernelSpec, buffers: Sequence[BufferView], _scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per element."""
    arrays = check.named(spec, buffers)
    check.require_same_dtypes(arrays)
    shape = arrays["x"].shape
    if len(shape) < 2:
        raise InvalidRequest(f"x has shape {shape}, expected 2 or more dimensions (N, C, ...)")
    check.require_shape(arrays, "bias", shape[1:2], "one for each element of axis 1 of x")
    check.require_shape(arrays, "y", shape, "that of x")
    check.require_apart(arrays, "y", "bias")
    n = math.prod(shape)
    if n == 0:
        return OpenCLPlan()
    arguments = [*pointers(3), long(n), long(shape[1]), long(math.prod(shape[2:]))]
    return OpenCLPlan((launch("bias_add", arguments, (n,)),), (type_option(arrays["x"].dtype),))


KERNEL = Definition(SPEC, (native("bias_add"), OpenCLSource(SOURCE, plan)))
