"""random_uniform: uniformly distributed random numbers, the same on every device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin import philox
from polymux.kernel.builtin.native import native
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "random_uniform",
    outputs=(BufferParam("y", check.FLOATS),),
    scalars=(*philox.SEQUENCE, ScalarParam("low", DType.F64, 0.0), ScalarParam("high", DType.F64, 1.0)),
    idempotent=True,
    doc="Uniform random numbers in [low, high) (rounding may reach high unless it is 1 and low 0), 24 bits for float32"
    " and 53 for float64: Philox4x32-10 of number offset + i of (seed, stream). The same bits on every device.",
)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per Philox block."""
    low, high = float(scalars["low"]), float(scalars["high"])
    if not math.isfinite(high - low) or high < low:
        raise InvalidRequest(f"low is {low} and high {high}, expected finite numbers with low <= high")
    return philox.plan("random_uniform", check.named(spec, buffers), scalars, high - low, low)


KERNEL = Definition(SPEC, (native("random_uniform"), OpenCLSource(philox.SOURCE, plan)))
