"""dot: ``r = sum(x * y)``."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import BufferArgument, OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin import reduction
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import type_option
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "dot",
    inputs=(BufferParam("x", check.FLOATS), BufferParam("y", check.FLOATS)),
    outputs=(BufferParam("r", check.FLOATS),),
    idempotent=True,
    doc="r = sum(x * y) over all elements, accumulated in double precision. x and y have one shape, r has one"
    " element.",
)
SOURCE = (
    """
#define INPUTS __global const T *x, __global const T *y
#define ELEMENT(i) ((acc_t)x[i] * (acc_t)y[i])
"""
    + reduction.SOURCE
)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], _scalars: check.Scalars) -> OpenCLPlan:
    """Products summed by chunks, then their sums."""
    arrays = check.named(spec, buffers)
    check.require_same_dtypes(arrays)
    check.require_same_shapes({"x": arrays["x"], "y": arrays["y"]})
    check.require_apart(arrays, "r", "x", "y")
    if check.size(arrays["r"]) != 1:
        raise InvalidRequest(f"r has shape {arrays['r'].shape}, expected () or (1,)")
    options = (type_option(arrays["x"].dtype), *reduction.SUM_OF_FLOATS)
    return reduction.plan_all((BufferArgument(0), BufferArgument(1)), 2, check.size(arrays["x"]), options)


KERNEL = Definition(SPEC, (native("dot"), OpenCLSource(SOURCE, plan)))
