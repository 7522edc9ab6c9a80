"""noop: takes any buffers and does nothing; what one task costs."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.implementation import CudaFunction, OpenCLSource
from polymux.core.kernel_spec import KernelSpec
from polymux.core.opencl_plan import OpenCLLaunch, OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.operands import Scalars
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "noop",
    variadic=True,
    idempotent=True,
    doc="Takes any buffers and does nothing; for measuring what a task costs.",
)
SOURCE = "__kernel void noop(void) {}\n"


def plan(_spec: KernelSpec, _buffers: Sequence[BufferView], _scalars: Scalars) -> OpenCLPlan:
    """One work-item that returns at once: the device's round trip is part of what is measured."""
    return OpenCLPlan((OpenCLLaunch("noop", (), (1,), (1,)),))


KERNEL = Definition(
    SPEC, (native("noop", threads=False), OpenCLSource(SOURCE, plan), CudaFunction(lambda *_: None))
)
