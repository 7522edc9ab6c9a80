"""random_normal: normally distributed random numbers, the same on every device."""

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
    "random_normal",
    outputs=(BufferParam("y", check.FLOATS),),
    scalars=(
        *philox.SEQUENCE,
        ScalarParam("mean", DType.F64, 0.0),
        ScalarParam("deviation", DType.F64, 1.0),
    ),
    idempotent=True,
    doc="Normal random numbers: the transformation of Box and Muller of Philox4x32-10, number offset + i of (seed,"
    " stream); up to 6.6 deviations from the mean for float32, 8.5 for float64. The same bits on every device.",
)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per Philox block."""
    mean, deviation = float(scalars["mean"]), float(scalars["deviation"])
    if not (math.isfinite(mean) and math.isfinite(deviation)) or deviation < 0:
        raise InvalidRequest(
            f"mean is {mean} and deviation {deviation}, expected finite numbers with deviation >= 0"
        )
    return philox.plan("random_normal", check.named(spec, buffers), scalars, deviation, mean)


KERNEL = Definition(SPEC, (native("random_normal"), OpenCLSource(philox.SOURCE, plan)))
