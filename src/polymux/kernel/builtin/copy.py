"""copy: ``y = x`` for any dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polymux.core.implementation import CudaFunction, OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import bits_option, launch, long, pointers
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "copy",
    inputs=(BufferParam("x"),),
    outputs=(BufferParam("y"),),
    idempotent=True,
    doc="y = x. Any dtype; y has the shape and dtype of x.",
)
SOURCE = """
__kernel void copy(__global const T *x, __global T *y, long n) {
  long i = get_global_id(0);
  if (i < n) y[i] = x[i];
}
"""


def plan(spec: KernelSpec, buffers: Sequence[BufferView], _scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per element."""
    arrays = check.named(spec, buffers)
    check.require_same_dtypes(arrays)
    check.require_same_shapes(arrays)
    n = check.size(arrays["x"])
    if n == 0 or check.same_memory(arrays["x"], arrays["y"]):
        return OpenCLPlan()
    return OpenCLPlan((launch("copy", [*pointers(2), long(n)], (n,)),), (bits_option(arrays["x"].dtype),))


def on_cuda(x: Any, y: Any) -> None:
    """CuPy's copy."""
    check.require_same_dtypes({"x": x, "y": y})
    check.require_same_shapes({"x": x, "y": y})
    y[...] = x


KERNEL = Definition(SPEC, (native("copy"), OpenCLSource(SOURCE, plan), CudaFunction(on_cuda)))
