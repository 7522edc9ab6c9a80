"""What gaussian_pivots and gaussian_update share: their OpenCL program and the checks of their operands.

The two do Gaussian elimination without pivoting by blocks of pivot rows, on rows of any part of the matrix, so that
rows can be divided: one queue makes the pivots of a block, then all queues subtract their multiples from their rows.
Every element loses its multiples in the order of the pivots, each product and difference rounded, so that the numbers
are those of `gaussian_step` for one column after the other.

References
----------
G. H. Golub, C. F. Van Loan, "Matrix Computations", 4th ed., 2013, sections 3.2.1 and 3.2.11 (blocks).
S. Che et al., "Rodinia: a benchmark suite for heterogeneous computing", IISWC 2009 (gaussian).
"""

from __future__ import annotations

from collections.abc import Mapping

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import ScalarParam
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.opencl import EXACT, VECTOR, type_option

MOST_PIVOTS = 64

SCALARS = (ScalarParam("first", DType.I64), ScalarParam("column", DType.I64))

SOURCE = (
    EXACT
    + VECTOR
    + """
// a / b, correctly rounded; OpenCL asks that of double precision only.
#if defined(SINGLE) && defined(cl_khr_fp64)
#define QUOTIENT(a, b) ((float)((double)(a) / (double)(b)))
#else
#define QUOTIENT(a, b) ((a) / (b))
#endif
#define ROWS_AT_ONCE 4

__kernel void copy(__global const T *from, __global T *to, long begin, long n) {
  const long i = get_global_id(0);
  if (i < n) to[i] = from[begin + i];
}

// Row `first` + i: its multipliers of all pivots, and zeros in their columns.
__kernel void multipliers(__global T *rows, __global const T *pivots, __global T *multiplier, long n_pivots,
                          long columns, long first, long end, long column) {
  const long i = get_global_id(0);
  if (first + i >= end) return;
  __global T *row = rows + (first + i) * columns + column;
  T own[PIVOTS];
  for (long j = 0; j < n_pivots; ++j) own[j] = row[j];
  for (long j = 0; j < n_pivots; ++j) {
    __global const T *pivot = pivots + j * columns + column;
    const T m = QUOTIENT(own[j], pivot[j]);
    multiplier[i * n_pivots + j] = m;
    for (long c = j + 1; c < n_pivots; ++c) own[c] = own[c] - m * pivot[c];
    row[j] = 0;
  }
}

// The columns from `begin` on, LANES columns of ROWS_AT_ONCE rows for each work-item.
__kernel void subtract(__global T *rows, __global const T *pivots, __global const T *multiplier, long n_pivots,
                       long columns, long first, long end, long begin) {
  const long c = begin + (long)get_global_id(0) * LANES, i = (long)get_global_id(1) * ROWS_AT_ONCE;
  if (c >= columns) return;
  __global T *row = rows + (first + i) * columns + c;
  __global const T *m = multiplier + i * n_pivots;
  if (first + i + ROWS_AT_ONCE <= end && c + LANES <= columns) {
    TV sum0 = vload8(0, row), sum1 = vload8(0, row + columns);
    TV sum2 = vload8(0, row + 2 * columns), sum3 = vload8(0, row + 3 * columns);
    for (long j = 0; j < n_pivots; ++j) {
      const TV pivot = vload8(0, pivots + j * columns + c);
      sum0 = sum0 - m[j] * pivot;
      sum1 = sum1 - m[n_pivots + j] * pivot;
      sum2 = sum2 - m[2 * n_pivots + j] * pivot;
      sum3 = sum3 - m[3 * n_pivots + j] * pivot;
    }
    vstore8(sum0, 0, row);
    vstore8(sum1, 0, row + columns);
    vstore8(sum2, 0, row + 2 * columns);
    vstore8(sum3, 0, row + 3 * columns);
  } else {
    for (long r = i; r < i + ROWS_AT_ONCE && first + r < end; ++r) {
      for (long at = c; at < min(c + LANES, columns); ++at) {
        T sum = rows[(first + r) * columns + at];
        for (long j = 0; j < n_pivots; ++j) sum = sum - multiplier[r * n_pivots + j] * pivots[j * columns + at];
        rows[(first + r) * columns + at] = sum;
      }
    }
  }
}

// One work-group: the pivots eliminate each other. Work-item i has the columns i, i + group ...
__kernel void eliminate(__global T *pivots, long n_pivots, long columns, long column, __local T *multiplier) {
  const long me = get_local_id(0), group = get_local_size(0);
  for (long j = 0; j + 1 < n_pivots; ++j) {
    for (long i = j + 1 + me; i < n_pivots; i += group)
      multiplier[i] = QUOTIENT(pivots[i * columns + column + j], pivots[j * columns + column + j]);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    for (long i = j + 1; i < n_pivots; ++i)
      for (long c = column + j + me; c < columns; c += group)
        pivots[i * columns + c] =
          c == column + j ? 0 : pivots[i * columns + c] - multiplier[i] * pivots[j * columns + c];
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  }
}
"""
)


def options(dtype: DType) -> tuple[str, ...]:
    """Build options of the program."""
    single = ("-DSINGLE",) if dtype is DType.F32 else ()
    return (type_option(dtype), f"-DPIVOTS={MOST_PIVOTS}", *single)


def checked(arrays: Mapping[str, check.Array], scalars: check.Scalars) -> tuple[int, int]:
    """Check rows and pivots against each other and against the scalars.

    Returns
    -------
    first, column : int
    """
    first, column = int(scalars["first"]), int(scalars["column"])
    check.require_same_dtypes(arrays)
    check.require_rank(arrays, "rows", 2, "(rows, columns)")
    check.require_rank(arrays, "pivots", 2, "(pivots, columns)")
    rows, columns = arrays["rows"].shape
    count, width = arrays["pivots"].shape
    if not 1 <= count <= MOST_PIVOTS or width != columns:
        raise InvalidRequest(
            f"pivots has shape {(count, width)}, expected 1 to {MOST_PIVOTS} rows of {columns} columns"
        )
    if not 0 <= first <= rows:
        raise InvalidRequest(f"first is {first}, expected 0 to {rows} for rows of shape {(rows, columns)}")
    if not 0 <= column <= columns - count:
        raise InvalidRequest(
            f"column is {column}, expected 0 to {columns - count} for {count} pivots in {columns} columns"
        )
    return first, column
