"""The OpenCL matrix product that gemm and conv2d share: tiles in local memory, blocks in registers.

A work-group of 8 x 8 items computes 64 rows x 8 vectors of ``c = a @ b``, an item 8 rows of one vector (V. Volkov,
J. W. Demmel, "Benchmarking GPUs to tune dense linear algebra", SC'08). What is outside a or b counts as 0.
"""

from __future__ import annotations

from polymux.core.dtype import DType

ROWS = 64
LOCAL = (8, 8, 1)
_VECTOR_NBYTES = 64
_DEPTH = {DType.F32: 32, DType.F64: 16}
"""Extent of a tile along the summation: its two tiles take 24 KiB of local memory, or 16 KiB."""

DEFINITIONS = """
#define TILE_ROWS 64
#define TILE_COLUMNS (8 * WIDTH)
#define ITEMS 64
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
typedef PASTE(T, WIDTH) vector_t;
#define VLOAD PASTE(vload, WIDTH)
#define VSTORE PASTE(vstore, WIDTH)

// Elements [first, first + SPAN) x [k0, k0 + TILE_K) of a matrix whose neighbours are `step` and `k_step` apart: whole
// vectors where one of the two is 1 and the tile lies inside, else one by one.
#define LOAD_TILE(tile, SPAN, source, first, limit, step, k_step)                                        \
  if ((first) + SPAN <= (limit) && k0 + TILE_K <= depth && (step) == 1) {                                \
    for (int v = item; v < TILE_K * SPAN / WIDTH; v += ITEMS) {                                          \
      const int kk = v / (SPAN / WIDTH), i = v % (SPAN / WIDTH) * WIDTH;                                 \
      VSTORE(VLOAD(0, source + (k0 + kk) * (k_step) + (first) + i), 0, &tile[kk][i]);                    \
    }                                                                                                    \
  } else if ((first) + SPAN <= (limit) && k0 + TILE_K <= depth && (k_step) == 1) {                       \
    for (int v = item; v < TILE_K * SPAN / WIDTH; v += ITEMS) {                                          \
      const int i = v % SPAN, kk = v / SPAN * WIDTH;                                                     \
      T elements[WIDTH];                                                                                 \
      VSTORE(VLOAD(0, source + ((first) + i) * (step) + k0 + kk), 0, elements);                          \
      for (int e = 0; e < WIDTH; ++e) tile[kk + e][i] = elements[e];                                     \
    }                                                                                                    \
  } else {                                                                                               \
    for (int s = item; s < TILE_K * SPAN; s += ITEMS) {                                                  \
      const int i = s % SPAN, kk = s / SPAN;                                                             \
      const int inside = (first) + i < (limit) && k0 + kk < depth;                                       \
      tile[kk][i] = inside ? source[((first) + i) * (step) + (k0 + kk) * (k_step)] : (T)0;               \
    }                                                                                                    \
  }

#define EACH_ROW(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define ZERO_ROW(r) vector_t acc##r = 0;
#define ADD_ROW(r) acc##r += (vector_t)(a_tile[kk][8 * item_row + r]) * b_vector;
#define STORE_ROW(r)                                                        \
  if (row0 + 8 * item_row + r < m) {                                        \
    const long row = row0 + 8 * item_row + r;                               \
    VSTORE(acc##r, 0, elements);                                            \
    for (int e = 0; e < WIDTH; ++e) {                                       \
      const long column = column0 + WIDTH * item_column + e;                \
      if (column < n) STORE(row, column, elements[e]);                      \
    }                                                                       \
  }
"""
"""Before the kernel. Build options: T, WIDTH and TILE_K (`options`)."""

BODY = """
  // LOAD_A and LOAD_B fill a_tile and b_tile; STORE(row, column, value).
  __local T a_tile[TILE_K][TILE_ROWS];
  __local T b_tile[TILE_K][TILE_COLUMNS];
  const int item_column = get_local_id(0), item_row = get_local_id(1);
  const int item = item_row * 8 + item_column;
  const long column0 = (long)get_group_id(0) * TILE_COLUMNS, row0 = (long)get_group_id(1) * TILE_ROWS;
  PREPARE
  EACH_ROW(ZERO_ROW)
  for (long k0 = 0; k0 < depth; k0 += TILE_K) {
    LOAD_A
    LOAD_B
    barrier(CLK_LOCAL_MEM_FENCE);
    // Unrolled, a compiler for CPUs keeps the accumulators in registers.
    #pragma unroll 4
    for (int kk = 0; kk < TILE_K; ++kk) {
      const vector_t b_vector = VLOAD(item_column, b_tile[kk]);
      EACH_ROW(ADD_ROW)
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  T elements[WIDTH];
  EACH_ROW(STORE_ROW)
"""
"""Within the kernel, after ``m``, ``n`` and ``depth`` are known."""


def width(dtype: DType) -> int:
    """Elements of one vector."""
    return _VECTOR_NBYTES // dtype.itemsize


def options(dtype: DType) -> tuple[str, ...]:
    """Build options of the tile."""
    return (f"-DWIDTH={width(dtype)}", f"-DTILE_K={_DEPTH[dtype]}")


def sizes(m: int, n: int, dtype: DType, batch: int = 1) -> tuple[int, int, int]:
    """Work-items for a (batch of) (m, n) product."""
    return -(-n // (8 * width(dtype))) * LOCAL[0], -(-m // ROWS) * LOCAL[1], batch
