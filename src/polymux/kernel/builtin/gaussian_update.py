"""gaussian_update: rows of a matrix lose their multiples of a block of pivot rows.

See `polymux.kernel.builtin.gaussian_block`.
"""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import BufferArgument, OpenCLArgument, OpenCLPlan, ScratchArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.gaussian_block import SCALARS, SOURCE, checked, options
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import LANES, launch, long
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "gaussian_update",
    inputs=(BufferParam("rows", check.FLOATS), BufferParam("pivots", check.FLOATS)),
    outputs=(BufferParam("rows_out", check.FLOATS),),
    scalars=SCALARS,
    doc="Gaussian elimination by blocks: `rows` (r, columns) from row `first` on lose their multiples of pivots"
    " (m, columns), m <= 64, made by gaussian_pivots, and are 0 in the columns `column` ... `column` + m - 1 then."
    " rows_out may be rows, which saves a copy. A pivot of 0 is an error on cpu devices, and gives infinities and NaN"
    " on others. The same bits on every device.",
)
_ROWS, _PIVOTS, _OUT = (BufferArgument(index) for index in range(3))
_ROWS_AT_ONCE = 4


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """A copy unless in place, then multipliers (into scratch memory), then the other columns."""
    arrays = check.named(spec, buffers)
    first, column = checked(arrays, scalars)
    check.require_shape(arrays, "rows_out", arrays["rows"].shape, "that of rows")
    check.require_apart(arrays, "rows_out", "pivots")
    (rows, columns), count = arrays["rows"].shape, arrays["pivots"].shape[0]
    dtype = arrays["rows"].dtype
    launches = []
    if rows and not check.same_memory(arrays["rows_out"], arrays["rows"]):
        size = rows * columns
        launches.append(launch("copy", [_ROWS, _OUT, long(0), long(size)], (size,)))
    if left := rows - first:
        multiplier = ScratchArgument(0)
        numbers = map(long, (count, columns, first, rows))
        shared: list[OpenCLArgument] = [_OUT, _PIVOTS, multiplier, *numbers]
        launches.append(launch("multipliers", [*shared, long(column)], (left,), (16,)))
        begin = column + count
        if begin < columns:
            items = (-(-(columns - begin) // LANES), -(-left // _ROWS_AT_ONCE))
            launches.append(launch("subtract", [*shared, long(begin)], items, (16, 1)))
    scratch = (left * count * dtype.itemsize,) if left else ()
    return OpenCLPlan(tuple(launches), options(dtype), scratch)


KERNEL = Definition(SPEC, (native("gaussian_update"), OpenCLSource(SOURCE, plan)))
