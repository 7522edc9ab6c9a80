"""gemm_batch: the matrix products of a batch, or their sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import BufferArgument, OpenCLPlan, ScalarArgument, ScratchArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin import tile
from polymux.kernel.builtin.gemm import PARALLEL_WORK
from polymux.kernel.builtin.opencl import launch, long, pointers, type_option
from polymux.kernel.definition import Definition
from polymux.kernel.team import Team

SPEC = KernelSpec(
    "gemm_batch",
    inputs=(BufferParam("a", check.FLOATS), BufferParam("b", check.FLOATS)),
    outputs=(BufferParam("c", check.FLOATS),),
    scalars=(
        ScalarParam("alpha", DType.F64, 1.0),
        ScalarParam("transpose_a", DType.BOOL, False),
        ScalarParam("transpose_b", DType.BOOL, False),
    ),
    idempotent=True,
    doc="c[i] = alpha * op(a[i]) @ op(b[i]) for each i of a batch, op as in gemm. An array of three dimensions is a"
    " batch of matrices; of more, those after the second are merged: (N, C, H, W) is a batch of C x (H * W). Of a and b"
    " one may be a single matrix, which is used for the whole batch. If c is a single matrix, the products are summed.",
)
SOURCE = f"""{tile.DEFINITIONS}
#define PREPARE                     \\
  a += get_group_id(2) * a_matrix;  \\
  b += get_group_id(2) * b_matrix;  \\
  c += get_group_id(2) * m * n;
#define LOAD_A LOAD_TILE(a_tile, TILE_ROWS, a, row0, m, a_row, a_k)
#define LOAD_B LOAD_TILE(b_tile, TILE_COLUMNS, b, column0, n, b_column, b_k)
#define STORE(row, column, value) c[(row) * n + (column)] = alpha * (value)
__kernel __attribute__((reqd_work_group_size(8, 8, 1))) void gemm_batch(
    __global const T *a, __global const T *b, __global T *c, long m, long n, long depth, long a_row, long a_k,
    long b_k, long b_column, long a_matrix, long b_matrix, T alpha) {{
{tile.BODY}}}

__kernel void add_up(__global const T *products, __global T *c, long n, long batch) {{
  const long i = get_global_id(0);
  if (i >= n) return;
  T sum = 0;
  for (long at = 0; at < batch; ++at) sum += products[at * n + i];
  c[i] = sum;
}}
"""


@dataclass(frozen=True, slots=True)
class _Extents:
    """Of op(a) (m, k), op(b) (k, n); `summed` when c is one matrix."""

    batch: int
    m: int
    n: int
    k: int
    summed: bool


def gemm_batch(
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    *,
    alpha: float,
    transpose_a: bool,
    transpose_b: bool,
    team: Team,
) -> None:
    """NumPy's BLAS, matrix by matrix; a part of the batch, or of the rows of the sum, for each thread."""
    extents = _extents({"a": a, "b": b, "c": c}, transpose_a, transpose_b)
    left, right = _matrices(a, transpose_a), _matrices(b, transpose_b)
    result = c if extents.summed else c.reshape(extents.batch, extents.m, extents.n)

    def products(begin: int, end: int) -> None:
        a_part = left[begin:end] if left.ndim == 3 else left
        b_part = right[begin:end] if right.ndim == 3 else right
        np.matmul(a_part, b_part, out=result[begin:end])

    def sums(begin: int, end: int) -> None:
        part = result[begin:end]
        product = np.empty_like(part)
        part[...] = 0
        for i in range(extents.batch):
            np.matmul(left[i, begin:end], right[i], out=product)
            part += product

    count, work = (extents.m, sums) if extents.summed else (extents.batch, products)
    if extents.batch * extents.m * extents.n * extents.k < PARALLEL_WORK:
        work(0, count)
    else:
        team.parallel_for(count, work, align=8 if extents.summed else 1)
    if alpha != 1:
        result *= result.dtype.type(alpha)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-group per tile of each product; sums go through scratch memory, in the order of the batch."""
    arrays = check.named(spec, buffers)
    transpose_a, transpose_b = bool(scalars["transpose_a"]), bool(scalars["transpose_b"])
    extents = _extents(arrays, transpose_a, transpose_b)
    m, n, k = extents.m, extents.n, extents.k
    if m * n == 0 or (extents.batch == 0 and not extents.summed):
        return OpenCLPlan()
    dtype = arrays["c"].dtype
    strides = [*((1, m) if transpose_a else (k, 1)), *((1, k) if transpose_b else (n, 1))]
    steps = [m * k if len(arrays["a"].shape) > 2 else 0, k * n if len(arrays["b"].shape) > 2 else 0]
    numbers = [long(value) for value in (m, n, k, *strides, *steps)]
    target = ScratchArgument(0) if extents.summed else BufferArgument(2)
    arguments = [*pointers(2), target, *numbers, ScalarArgument(dtype, scalars["alpha"])]
    launches = []
    scratch: tuple[int, ...] = ()
    if extents.batch:
        launches = [launch("gemm_batch", arguments, tile.sizes(m, n, dtype, extents.batch), tile.LOCAL)]
    if extents.summed:
        launches.append(
            launch("add_up", [target, BufferArgument(2), long(m * n), long(extents.batch)], (m * n,))
        )
        scratch = (max(extents.batch, 1) * m * n * dtype.itemsize,)
    return OpenCLPlan(tuple(launches), (type_option(dtype), *tile.options(dtype)), scratch)


def _matrices(array: NDArray[Any], transposed: bool) -> NDArray[Any]:
    merged = array if array.ndim < 4 else array.reshape(*array.shape[:2], math.prod(array.shape[2:]))
    return np.swapaxes(merged, -1, -2) if transposed else merged


def _extents(arrays: Mapping[str, check.Array], transpose_a: bool, transpose_b: bool) -> _Extents:
    check.require_same_dtypes(arrays)
    shapes = {}
    for name in ("a", "b", "c"):
        shape = arrays[name].shape
        if len(shape) < 2:
            raise InvalidRequest(
                f"{name} has shape {shape}, expected (rows, columns) or (batch, rows, columns, ...)"
            )
        shapes[name] = shape if len(shape) == 2 else (*shape[:2], math.prod(shape[2:]))
    batches = [shapes[name][0] for name in ("a", "b") if len(shapes[name]) == 3]
    summed = len(shapes["c"]) == 2
    if not batches or (summed and len(batches) == 1):
        raise InvalidRequest(
            f"a has shape {arrays['a'].shape}, b {arrays['b'].shape}, c {arrays['c'].shape}: expected a batch"
            " (batch, rows, columns) as a or b, and as both if c is a single matrix; gemm multiplies single ones"
        )
    batch = batches[0]
    m, k = shapes["a"][-2:][::-1] if transpose_a else shapes["a"][-2:]
    n = shapes["b"][-2 if transpose_b else -1]
    lead = (batch,) if len(shapes["b"]) == 3 else ()
    expected = {"b": (*lead, *((n, k) if transpose_b else (k, n))), "c": (m, n) if summed else (batch, m, n)}
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise InvalidRequest(
                f"{name} has shape {arrays[name].shape}, expected {shape} (a batch of {batch}, op(a) is {m} x {k})"
            )
    check.require_apart(arrays, "c", "a", "b")
    return _Extents(batch, m, n, k, summed)


KERNEL = Definition(SPEC, (PythonFunction(gemm_batch, parallel=True), OpenCLSource(SOURCE, plan)))
