"""gaussian_step: one step of Gaussian elimination without pivoting, as the two kernels of Rodinia's gaussian.

Step k subtracts from every row i > k the multiple a[i, k] / a[k, k] of row k, of a and of b alike, and leaves exact
zeros below the diagonal. After the steps 0 to n - 2 a is upper triangular and a x = b has the solution it had before:
back substitution (`scipy.linalg.solve_triangular`) finds it.

References
----------
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009 (gaussian: Fan1, Fan2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import BufferArgument, OpenCLArgument, OpenCLPlan, ScratchArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import EXACT, launch, long, type_option
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "gaussian_step",
    inputs=(BufferParam("a", check.FLOATS), BufferParam("b", check.FLOATS)),
    outputs=(BufferParam("a_out", check.FLOATS), BufferParam("b_out", check.FLOATS)),
    scalars=(ScalarParam("k", DType.I64),),
    doc="Step k of the elimination of a (n, n) and b (n,) or (n, right-hand sides), without pivoting: row i > k loses"
    " a[i, k] / a[k, k] times row k. a_out may be a and b_out b, which saves a copy. A pivot of 0 is an error on cpu"
    " devices, and gives infinities and NaN on others. The same bits on every device.",
)
SOURCE = (
    EXACT
    + """
// a / b, correctly rounded; OpenCL asks that of double precision only.
#if defined(SINGLE) && defined(cl_khr_fp64)
#define QUOTIENT(a, b) ((float)((double)(a) / (double)(b)))
#else
#define QUOTIENT(a, b) ((a) / (b))
#endif

__kernel void copy(__global const T *from, __global T *to, long n) {
  const long i = get_global_id(0);
  if (i < n) to[i] = from[i];
}

// Row i > k: its multiplier, its zero in column k, and its right-hand sides.
__kernel void multipliers(__global T *a, __global T *b, __global T *multiplier, long n, long k, long width) {
  const long i = k + 1 + get_global_id(0);
  if (i >= n) return;
  const T m = QUOTIENT(a[i * n + k], a[k * n + k]);
  multiplier[i] = m;
  a[i * n + k] = 0;
  for (long j = 0; j < width; ++j) b[i * width + j] = b[i * width + j] - m * b[k * width + j];
}

// The columns right of k.
__kernel void eliminate(__global T *a, __global const T *multiplier, long n, long k) {
  const long j = k + 1 + get_global_id(0), i = k + 1 + get_global_id(1);
  if (i < n && j < n) a[i * n + j] = a[i * n + j] - multiplier[i] * a[k * n + j];
}
"""
)
_A, _B, _A_OUT, _B_OUT = (BufferArgument(index) for index in range(4))


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """Copies unless in place, then multipliers (into scratch memory), then the update."""
    arrays = check.named(spec, buffers)
    k = int(scalars["k"])
    n, width = _extents(arrays, k)
    dtype = arrays["a"].dtype
    launches = []
    if not check.same_memory(arrays["a_out"], arrays["a"]):
        launches.append(launch("copy", [_A, _A_OUT, long(n * n)], (n * n,)))
    if width and not check.same_memory(arrays["b_out"], arrays["b"]):
        launches.append(launch("copy", [_B, _B_OUT, long(n * width)], (n * width,)))
    if rows := n - k - 1:
        multiplier = ScratchArgument(0)
        numbers = (long(n), long(k))
        step: list[OpenCLArgument] = [_A_OUT, _B_OUT, multiplier, *numbers, long(width)]
        launches.append(launch("multipliers", step, (rows,), (64,)))
        launches.append(launch("eliminate", [_A_OUT, multiplier, *numbers], (rows, rows), (64, 4)))
    single = ("-DSINGLE",) if dtype is DType.F32 else ()
    return OpenCLPlan(tuple(launches), (type_option(dtype), *single), (n * dtype.itemsize,))


def _extents(arrays: Mapping[str, check.Array], k: int) -> tuple[int, int]:
    check.require_same_dtypes(arrays)
    check.require_rank(arrays, "a", 2, "(n, n)")
    n = arrays["a"].shape[0]
    check.require_shape(arrays, "a", (n, n), "a square matrix")
    b = arrays["b"].shape
    if len(b) not in (1, 2) or b[0] != n:
        raise InvalidRequest(f"b has shape {b}, expected ({n},) or ({n}, right-hand sides)")
    check.require_shape(arrays, "a_out", (n, n), "that of a")
    check.require_shape(arrays, "b_out", b, "that of b")
    check.require_apart(arrays, "a_out", "b", "b_out")
    check.require_apart(arrays, "b_out", "a")
    if not 0 <= k < n:
        raise InvalidRequest(f"k is {k}, expected 0 to {n - 1} for a of shape {(n, n)}")
    return n, b[1] if len(b) == 2 else 1


KERNEL = Definition(SPEC, (native("gaussian_step"), OpenCLSource(SOURCE, plan)))
