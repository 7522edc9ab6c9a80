"""hotspot_steps: several steps of `stencil` in one task, on a band of a grid's rows.

A band that is not at the edge of the grid gets the rows next to it as margins, at least as many as there are steps, and
gives its own first and last rows for its neighbours' next task. The steps are those of `stencil`, bit for bit.

References
----------
W. Huang et al., "HotSpot: a compact thermal modeling methodology for early-stage VLSI design", IEEE TVLSI 14 (2006).
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import BufferArgument, OpenCLArgument, OpenCLLaunch, OpenCLPlan, ScratchArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import EXACT, LANES, VECTOR, launch, long, type_option
from polymux.kernel.builtin.stencil import SPEC as STENCIL
from polymux.kernel.builtin.stencil import constants
from polymux.kernel.definition import Definition

MOST_STEPS = 64

SPEC = KernelSpec(
    "hotspot_steps",
    inputs=tuple(
        BufferParam(name, check.FLOATS)
        for name in ("temperature", "power", "above", "below", "power_above", "power_below")
    ),
    outputs=tuple(BufferParam(name, check.FLOATS) for name in ("temperature_out", "top_out", "bottom_out")),
    scalars=(*STENCIL.scalars, ScalarParam("steps", DType.I32, 1)),
    idempotent=True,
    doc="Up to 64 steps of stencil on a band of rows (rows, columns). above, below: the rows next to it, at least as"
    " many as steps, or none at an edge of the grid; power_above, power_below: their power. top_out, bottom_out: as"
    " many of the band's first and last rows as they have. The same bits on every device.",
)
SOURCE = (
    EXACT
    + VECTOR
    + """
// Rows that lie in up to three arrays, one after the other.
#define ROW(above, centre, below, row) ((row) < n_above ? (above) + (row) * columns \\
  : (row) < n_above + n_centre ? (centre) + ((row) - n_above) * columns \\
  : (below) + ((row) - n_above - n_centre) * columns)

T heat(T centre, T up, T down, T left, T right, T power, T step_over_capacity, T per_rx, T per_ry, T per_rz,
       T ambient) {
  const T twice = centre + centre;
  const T vertical = (up + down - twice) * per_ry;
  const T horizontal = (left + right - twice) * per_rx;
  const T sink = (ambient - centre) * per_rz;
  return centre + step_over_capacity * (power + vertical + horizontal + sink);
}

// Rows [first, end) of all, LANES columns per work-item; row `to` of next is row 0.
__kernel void advance(__global const T *above, __global const T *now, __global const T *below, __global T *next,
                      __global const T *power_above, __global const T *power, __global const T *power_below,
                      long skipped, long n_above, long n_centre, long columns, long in_one, long first, long end,
                      long to, long last_row, T step_over_capacity, T per_rx, T per_ry, T per_rz, T ambient) {
  const long c = get_global_id(0) * LANES, row = first + (long)get_global_id(1);
  if (row >= end || c >= columns) return;
  // The margin's last rows count; scratch memory holds all rows in one array.
  above += skipped * columns;
  power_above += skipped * columns;
  const long up_row = max(row - 1, 0L), down_row = min(row + 1, last_row);
  __global const T *at = in_one ? now + row * columns : ROW(above, now, below, row);
  __global const T *up = in_one ? now + up_row * columns : ROW(above, now, below, up_row);
  __global const T *down = in_one ? now + down_row * columns : ROW(above, now, below, down_row);
  __global const T *made = ROW(power_above, power, power_below, row);
  next += (row - to) * columns;
  if (c > 0 && c + LANES < columns) {
    const TV centre = vload8(0, at + c), twice = centre + centre;
    const TV vertical = (vload8(0, up + c) + vload8(0, down + c) - twice) * per_ry;
    const TV horizontal = (vload8(0, at + c - 1) + vload8(0, at + c + 1) - twice) * per_rx;
    const TV sink = (ambient - centre) * per_rz;
    vstore8(centre + step_over_capacity * (vload8(0, made + c) + vertical + horizontal + sink), 0, next + c);
  } else {
    for (long i = c; i < min(c + LANES, columns); ++i)
      next[i] = heat(at[i], up[i], down[i], at[max(i - 1, 0L)], at[min(i + 1, columns - 1)], made[i],
                     step_over_capacity, per_rx, per_ry, per_rz, ambient);
  }
}

__kernel void take(__global const T *from, __global T *to, long begin, long n) {
  const long i = get_global_id(0);
  if (i < n) to[i] = from[begin + i];
}
"""
)
_NOW, _POWER, _ABOVE, _BELOW, _POWER_ABOVE, _POWER_BELOW, _NEXT, _TOP, _BOTTOM = (
    BufferArgument(index) for index in range(9)
)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One launch per step, over fewer and fewer rows of the margins; then the band's first and last rows."""
    arrays = check.named(spec, buffers)
    steps = _checked_steps(arrays, scalars)
    dtype = arrays["temperature"].dtype
    numbers = constants(dtype, scalars)
    rows, columns = arrays["temperature"].shape
    if rows * columns == 0:
        return OpenCLPlan()
    n_above, n_below = (min(steps, arrays[name].shape[0]) for name in ("above", "below"))
    total = n_above + rows + n_below
    skipped = arrays["above"].shape[0] - n_above
    launches: list[OpenCLLaunch] = []
    source: OpenCLArgument = _NOW
    for step in range(1, steps + 1):
        ahead = steps - step
        first, end = max(0, n_above - ahead), min(total, n_above + rows + ahead)
        target: OpenCLArgument = ScratchArgument(step % 2) if ahead else _NEXT
        arguments: list[OpenCLArgument] = [
            *(_ABOVE, source, _BELOW, target, _POWER_ABOVE, _POWER, _POWER_BELOW),
            *map(
                long,
                (skipped, n_above, rows, columns, step > 1, first, end, 0 if ahead else n_above, total - 1),
            ),
            *numbers,
        ]
        launches.append(launch("advance", arguments, (-(-columns // LANES), end - first), (32, 1)))
        source = target
    for target, name in ((_TOP, "top_out"), (_BOTTOM, "bottom_out")):
        count = check.size(arrays[name])
        begin = 0 if name == "top_out" else rows * columns - count
        if count:
            launches.append(launch("take", [_NEXT, target, long(begin), long(count)], (count,)))
    scratch = (total * columns * dtype.itemsize,) * (2 if steps > 1 else 0)
    return OpenCLPlan(tuple(launches), (type_option(dtype),), scratch)


def _checked_steps(arrays: Mapping[str, check.Array], scalars: check.Scalars) -> int:
    steps = int(scalars["steps"])
    if not 1 <= steps <= MOST_STEPS:
        raise InvalidRequest(f"steps is {steps}, expected 1 to {MOST_STEPS}")
    check.require_same_dtypes(arrays)
    for name in arrays:
        check.require_rank(arrays, name, 2, "(rows, columns)")
    rows, columns = arrays["temperature"].shape
    for name in ("power", "temperature_out"):
        check.require_shape(arrays, name, (rows, columns), "that of temperature")
    for name in ("above", "below", "power_above", "power_below"):
        shape = arrays[name].shape
        if shape[1] != columns or 0 < shape[0] < steps:
            raise InvalidRequest(
                f"{name} has shape {shape}, expected 0 rows (an edge) or at least {steps} (the steps) of {columns}"
                " columns"
            )
    check.require_shape(arrays, "power_above", arrays["above"].shape, "that of above")
    check.require_shape(arrays, "power_below", arrays["below"].shape, "that of below")
    for name in ("top_out", "bottom_out"):
        shape = arrays[name].shape
        if shape[1] != columns or shape[0] > rows:
            raise InvalidRequest(
                f"{name} has shape {shape}, expected at most {rows} rows of {columns} columns"
            )
    inputs = [param.name for param in SPEC.inputs]
    for name in ("temperature_out", "top_out", "bottom_out"):
        check.require_apart(arrays, name, *inputs)
    check.require_apart(arrays, "temperature_out", "top_out", "bottom_out")
    check.require_apart(arrays, "top_out", "bottom_out")
    return steps


KERNEL = Definition(SPEC, (native("hotspot_steps"), OpenCLSource(SOURCE, plan)))
