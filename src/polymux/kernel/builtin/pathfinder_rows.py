"""pathfinder_rows: the cheapest ways through a grid from one row to a later one, by dynamic programming.

A way goes from each cell to one of the three next to it in the following row. With ``cost[j]`` the least cost of
arriving in column j so far, every row i adds ``cost'[j] = wall[i, j] + min(cost[j - 1], cost[j], cost[j + 1])``.

A band of the columns that is not at an edge of the grid gets the costs next to it as margins, at least as many as rows
are taken, and gives its own first and last ones for its neighbours' next task.

References
----------
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009 (pathfinder).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import (
    BufferArgument,
    LocalArgument,
    OpenCLArgument,
    OpenCLLaunch,
    OpenCLPlan,
    ScratchArgument,
)
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import launch, long
from polymux.kernel.definition import Definition

MOST_ROWS = 1024

_INTEGERS = (DType.I32,)

SPEC = KernelSpec(
    "pathfinder_rows",
    inputs=tuple(BufferParam(name, _INTEGERS) for name in ("wall", "cost", "left", "right")),
    outputs=tuple(BufferParam(name, _INTEGERS) for name in ("cost_out", "left_out", "right_out")),
    scalars=(ScalarParam("row", DType.I64, 0), ScalarParam("rows", DType.I64, 1)),
    idempotent=True,
    doc="cost_out (columns,) = the least cost of arriving in each column after `rows` rows (at most 1024) of wall,"
    " from `row` on. left, right: the costs next to cost, at least as many as rows, or none at an edge; the wall has"
    " their columns as well. left_out, right_out: as many of the first and last costs as they have. i4.",
)
GROUP = 64
"""Work-items of a group."""
LANES = 8
"""Columns of a work-item."""
WINDOW = GROUP * LANES
WINDOW_ROWS = 32
"""Rows of one launch; each costs a group a column at either side."""
SOURCE = """
#define LANES 8
#define NOBODY 0x3fffffff  // cost of a column that does not exist: nobody comes from there

// The columns of one group, from `window` on, lie in local memory from element 1 on; it computes more than it keeps.
__kernel void walk(__global const int *wall, __global const int *left, __global const int *centre,
                   __global const int *right, __global int *out, __local int *before, __local int *after,
                   long n_left, long n_centre, long columns, long row, long rows, long from, long until, long in_one,
                   long to) {
  const int me = get_local_id(0) * LANES, size = get_local_size(0) * LANES, kept = size - 2 * (int)rows;
  const long window = from + (long)get_group_id(0) * kept - rows, c = window + me;
  const int inside = c >= 0 && c + LANES <= columns;
  if (me == 0) before[0] = after[0] = before[size + 1] = after[size + 1] = NOBODY;
  if (in_one && inside) {
    vstore8(vload8(0, centre + c), 0, before + 1 + me);
  } else {
    for (int i = 0; i < LANES; ++i) {
      const long j = c + i;
      int cost = NOBODY;
      if (j >= 0 && j < columns)
        cost = in_one ? centre[j] : j < n_left ? left[j]
          : j < n_left + n_centre ? centre[j - n_left] : right[j - n_left - n_centre];
      before[1 + me + i] = cost;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (long r = 0; r < rows; ++r) {
    const int8 sides = min(vload8(0, before + me), vload8(0, before + me + 2));
    const int8 least = min(sides, vload8(0, before + me + 1));
    __global const int *line = wall + (row + r) * columns;
    if (inside) {
      vstore8(least + vload8(0, line + c), 0, after + 1 + me);
    } else {
      vstore8(least, 0, after + 1 + me);
      for (int i = 0; i < LANES; ++i) {
        const long j = c + i;
        after[1 + me + i] = j >= 0 && j < columns ? after[1 + me + i] + line[j] : NOBODY;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    __local int *other = before;
    before = after;
    after = other;
  }
  for (int i = 0; i < LANES; ++i)
    if (me + i >= rows && me + i < rows + kept && c + i < until) out[c + i - to] = before[1 + me + i];
}

__kernel void take(__global const int *from, __global int *to, long begin, long n) {
  const long i = get_global_id(0);
  if (i < n) to[i] = from[begin + i];
}
"""
_WALL, _COST, _LEFT, _RIGHT, _COST_OUT, _LEFT_OUT, _RIGHT_OUT = (BufferArgument(index) for index in range(7))


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One launch per `WINDOW_ROWS` rows, over fewer and fewer columns of the margins."""
    arrays = check.named(spec, buffers)
    row, rows = _checked_rows(arrays, scalars)
    n_left, n_centre, n_right = (check.size(arrays[name]) for name in ("left", "cost", "right"))
    columns = n_left + n_centre + n_right
    launches: list[OpenCLLaunch] = []
    if n_centre == 0:
        return OpenCLPlan()
    source: OpenCLArgument = _COST
    windows = [(done, min(WINDOW_ROWS, rows - done)) for done in range(0, rows, WINDOW_ROWS)] or [(0, 0)]
    for index, (done, count) in enumerate(windows):
        ahead = rows - done - count
        begin, end = max(0, n_left - ahead), min(columns, n_left + n_centre + ahead)
        target: OpenCLArgument = _COST_OUT if index == len(windows) - 1 else ScratchArgument(index % 2)
        local = LocalArgument((WINDOW + 2) * 4)
        arguments = [_WALL, _LEFT, source, _RIGHT, target, local, local]
        numbers = (n_left, n_centre, columns, row + done, count, begin, end, index > 0)
        groups = -(-(end - begin) // (WINDOW - 2 * count))
        arguments += map(long, (*numbers, n_left if target is _COST_OUT else 0))
        launches.append(launch("walk", arguments, (groups * GROUP,), (GROUP,)))
        source = target
    for edge, name in ((_LEFT_OUT, "left_out"), (_RIGHT_OUT, "right_out")):
        size = check.size(arrays[name])
        first = 0 if edge is _LEFT_OUT else n_centre - size
        if size:
            launches.append(launch("take", [_COST_OUT, edge, long(first), long(size)], (size,)))
    return OpenCLPlan(tuple(launches), (), (columns * 4,) * (2 if len(windows) > 1 else 0))


def _checked_rows(arrays: Mapping[str, check.Array], scalars: check.Scalars) -> tuple[int, int]:
    row, rows = int(scalars["row"]), int(scalars["rows"])
    check.require_rank(arrays, "wall", 2, "(rows, columns)")
    for name in list(arrays)[1:]:
        check.require_rank(arrays, name, 1, "(columns,)")
    height, width = arrays["wall"].shape
    if row < 0 or rows < 0 or row + rows > height or rows > MOST_ROWS:
        raise InvalidRequest(
            f"row is {row} and rows is {rows}; expected rows of the {height} that the wall has, at most {MOST_ROWS}"
        )
    count = check.size(arrays["cost"])
    columns = check.size(arrays["left"]) + count + check.size(arrays["right"])
    if width != columns:
        raise InvalidRequest(
            f"wall has shape {(height, width)}, expected {columns} columns (those of left, cost and right)"
        )
    for name in ("left", "right"):
        if 0 < check.size(arrays[name]) < rows:
            raise InvalidRequest(
                f"{name} has {check.size(arrays[name])} elements, expected 0 (an edge) or at least {rows} (the rows)"
            )
    check.require_shape(arrays, "cost_out", arrays["cost"].shape, "that of cost")
    for name in ("left_out", "right_out"):
        if check.size(arrays[name]) > count:
            raise InvalidRequest(
                f"{name} has {check.size(arrays[name])} elements, expected at most {count} (those of cost)"
            )
    for name in ("cost_out", "left_out", "right_out"):
        check.require_apart(arrays, name, "wall", "cost", "left", "right")
    check.require_apart(arrays, "cost_out", "left_out", "right_out")
    check.require_apart(arrays, "left_out", "right_out")
    return row, rows


KERNEL = Definition(SPEC, (native("pathfinder_rows"), OpenCLSource(SOURCE, plan)))
