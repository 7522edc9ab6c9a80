"""gaussian_pivots: some rows of a matrix eliminate each other and become the pivot rows of a block.

See `polymux.kernel.builtin.gaussian_block`.
"""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import BufferArgument, LocalArgument, OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.gaussian_block import SCALARS, SOURCE, checked, options
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import launch, long
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "gaussian_pivots",
    inputs=(BufferParam("rows", check.FLOATS),),
    outputs=(BufferParam("pivots", check.FLOATS),),
    scalars=SCALARS,
    idempotent=True,
    doc="Gaussian elimination by blocks: pivots (m, columns), m <= 64, = m rows of `rows` (r, columns) from row"
    " `first` on, which have eliminated each other in the columns `column` ... `column` + m - 1. Without pivoting. A"
    " pivot of 0 is an error on cpu devices, and gives infinities and NaN on others. The same bits on every device.",
)
_ROWS, _PIVOTS = BufferArgument(0), BufferArgument(1)
_GROUP = 64


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """A copy, then one work-group that eliminates."""
    arrays = check.named(spec, buffers)
    first, column = checked(arrays, scalars)
    check.require_apart(arrays, "pivots", "rows")
    (rows, columns), count = arrays["rows"].shape, arrays["pivots"].shape[0]
    if first + count > rows:
        raise InvalidRequest(
            f"first is {first}, expected 0 to {rows - count} for {count} pivots of rows of shape {(rows, columns)}"
        )
    dtype = arrays["rows"].dtype
    size = count * columns
    launches = [launch("copy", [_ROWS, _PIVOTS, long(first * columns), long(size)], (size,))]
    if count > 1:
        local = LocalArgument(count * dtype.itemsize)
        numbers = map(long, (count, columns, column))
        launches.append(launch("eliminate", [_PIVOTS, *numbers, local], (_GROUP,), (_GROUP,)))
    return OpenCLPlan(tuple(launches), options(dtype))


KERNEL = Definition(SPEC, (native("gaussian_pivots"), OpenCLSource(SOURCE, plan)))
