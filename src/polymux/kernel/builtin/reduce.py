"""reduce: sum, minimum or maximum of all elements or along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import BufferArgument, OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin import reduction
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import launch, long, pointers, type_option
from polymux.kernel.definition import Definition


class Operation(IntEnum):
    """Values of the scalar ``op``."""

    SUM = 0
    MIN = 1
    MAX = 2


DTYPES = (DType.F32, DType.F64, DType.I32, DType.I64)
SPEC = KernelSpec(
    "reduce",
    inputs=(BufferParam("x", DTYPES),),
    outputs=(BufferParam("r", DTYPES),),
    scalars=(ScalarParam("op", DType.I32, 0), ScalarParam("axis", DType.I32, -1)),
    idempotent=True,
    doc="Sum (op 0), minimum (1) or maximum (2). r of one element: over all of x; r of x's shape without `axis`:"
    " along that axis. Sums of floats are accumulated in double precision, sums of integers wrap. Minimum and"
    " maximum of a NaN are NaN, those of no elements an error.",
)
SOURCE = (
    """
#define INPUTS __global const T *x
#define ELEMENT(i) ((acc_t)x[i])
"""
    + reduction.SOURCE
    + """
// x seen as (outer, n, inner): one work-item per RUN neighbouring columns of n elements.
__kernel void columns(__global const T *x, __global T *r, long n, long inner) {
  const long column = get_global_id(0) * RUN, row = get_global_id(1);
  if (column >= inner) return;
  const int width = (int)min((long)RUN, inner - column);
  x += row * n * inner + column;
  r += row * inner + column;
  acc_t run[RUN];
  for (int e = 0; e < RUN; ++e) run[e] = IDENTITY;
  if (width == RUN) {
    for (long i = 0; i < n; ++i, x += inner) {
      UNROLL for (int e = 0; e < RUN; ++e) {
        const acc_t element = (acc_t)x[e];
        run[e] = JOIN(run[e], element);
      }
    }
  } else {
    for (long i = 0; i < n; ++i, x += inner) {
      for (int e = 0; e < width; ++e) {
        const acc_t element = (acc_t)x[e];
        run[e] = JOIN(run[e], element);
      }
    }
  }
  for (int e = 0; e < width; ++e) r[e] = (T)run[e];
}
"""
)
_IDENTITY = {
    (Operation.MIN, DType.I32): "INT_MAX",
    (Operation.MIN, DType.I64): "LONG_MAX",
    (Operation.MAX, DType.I32): "INT_MIN",
    (Operation.MAX, DType.I64): "LONG_MIN",
}


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """All elements by chunks, rows by work-groups, or columns by work-items."""
    arrays = check.named(spec, buffers)
    check.require_same_dtypes(arrays)
    check.require_apart(arrays, "r", "x")
    if scalars["op"] not in (0, 1, 2):
        raise InvalidRequest(f"op is {scalars['op']}, expected 0 (sum), 1 (minimum) or 2 (maximum)")
    operation = Operation(int(scalars["op"]))
    outer, n, inner = _layout(arrays, int(scalars["axis"]))
    if outer * inner == 0:
        return OpenCLPlan()
    if n == 0 and operation is not Operation.SUM:
        raise InvalidRequest(f"x has shape {arrays['x'].shape}: no elements have no minimum or maximum")
    options = _options(operation, arrays["x"].dtype)
    if outer * inner == 1:
        return reduction.plan_all((BufferArgument(0),), 1, n, options)
    if inner == 1:
        return reduction.plan_rows((BufferArgument(0),), 1, outer, n, options)
    arguments = [*pointers(2), long(n), long(inner)]
    return OpenCLPlan((launch("columns", arguments, (-(-inner // reduction.RUN), outer), (16, 1)),), options)


def _layout(arrays: dict[str, BufferView], axis: int) -> tuple[int, int, int]:
    """See x as (outer, n, inner), to be reduced over n."""
    x, r = arrays["x"], arrays["r"]
    if r.shape in ((), (1,)):
        return 1, check.size(x), 1
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise InvalidRequest(f"axis is {axis}, expected {-rank} to {rank - 1} for x of shape {x.shape}")
    at = axis % rank
    outer, inner = x.shape[:at], x.shape[at + 1 :]
    check.require_shape(arrays, "r", outer + inner, f"x without axis {at}, or () for all elements")
    return math.prod(outer), x.shape[at], math.prod(inner)


def _options(operation: Operation, dtype: DType) -> tuple[str, ...]:
    floating = dtype in check.FLOATS
    if operation is Operation.SUM:
        if floating:
            return (type_option(dtype), *reduction.SUM_OF_FLOATS)
        return (type_option(dtype), "-DACC=ulong", "-DIDENTITY=0", "-DJOIN(a,b)=((a)+(b))")
    sign = "<" if operation is Operation.MIN else ">"
    # A NaN that has been seen stays, since nothing compares with it.
    nan = "||(b)!=(b)" if floating else ""
    identity = _IDENTITY.get((operation, dtype), "INFINITY" if operation is Operation.MIN else "-INFINITY")
    join = f"-DJOIN(a,b)=((b){sign}(a){nan}?(b):(a))"
    return (type_option(dtype), "-DACC=T", f"-DIDENTITY={identity}", join)


KERNEL = Definition(SPEC, (native("reduce"), OpenCLSource(SOURCE, plan)))
