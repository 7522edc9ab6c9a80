"""The OpenCL matrix product that gemm and conv2d share: tiles in local memory, blocks in registers.

A work-group of 8 x 8 items computes `ROWS` x `columns(dtype)` elements of ``c = a @ b``, an item 8 rows of one vector
(V. Volkov, J. W. Demmel, "Benchmarking GPUs to tune dense linear algebra", SC'08). What is outside a or b counts as 0.
"""

from __future__ import annotations

from polymux.core.dtype import DType

ROWS = 64
LOCAL = (8, 8, 1)

DEFINITIONS = """
#define TILE_K 16
#define TILE_ROWS 64
#define TILE_COLUMNS (8 * WIDTH)
#define ITEMS 64
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
typedef PASTE(T, WIDTH) vector_t;
#define VLOAD PASTE(vload, WIDTH)
#define VSTORE PASTE(vstore, WIDTH)
#define EACH_ROW(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define ZERO_ROW(r) vector_t acc##r = 0;
#define ADD_ROW(r) acc##r += (vector_t)(a_tile[kk][8 * item_row + r]) * b_vector;
#define STORE_ROW(r)                                                        \\
  if (row0 + 8 * item_row + r < m) {                                        \\
    const long row = row0 + 8 * item_row + r;                               \\
    VSTORE(acc##r, 0, elements);                                            \\
    for (int e = 0; e < WIDTH; ++e) {                                       \\
      const long column = column0 + WIDTH * item_column + e;                \\
      if (column < n) STORE(row, column, elements[e]);                      \\
    }                                                                       \\
  }
"""
"""Before the kernel. Build options: T and WIDTH (`options`)."""

BODY = """
  // A(row, k), B(k, column) and STORE(row, column, value) are macros; A_ALONG_K and B_ALONG_K say whether neighbours in
  // memory differ in k.
  __local T a_tile[TILE_K][TILE_ROWS];
  __local T b_tile[TILE_K][TILE_COLUMNS];
  const int item_column = get_local_id(0), item_row = get_local_id(1);
  const int item = item_row * 8 + item_column;
  const long column0 = (long)get_group_id(0) * TILE_COLUMNS, row0 = (long)get_group_id(1) * TILE_ROWS;
  EACH_ROW(ZERO_ROW)
  for (long k0 = 0; k0 < depth; k0 += TILE_K) {
    for (int s = item; s < TILE_K * TILE_ROWS; s += ITEMS) {
      const int i = A_ALONG_K ? s / TILE_K : s % TILE_ROWS, kk = A_ALONG_K ? s % TILE_K : s / TILE_ROWS;
      const long row = row0 + i, k = k0 + kk;
      a_tile[kk][i] = row < m && k < depth ? A(row, k) : (T)0;
    }
    for (int s = item; s < TILE_K * TILE_COLUMNS; s += ITEMS) {
      const int j = B_ALONG_K ? s / TILE_K : s % TILE_COLUMNS, kk = B_ALONG_K ? s % TILE_K : s / TILE_COLUMNS;
      const long column = column0 + j, k = k0 + kk;
      b_tile[kk][j] = column < n && k < depth ? B(k, column) : (T)0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
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
    """Elements of one vector: 256 bits."""
    return 32 // dtype.itemsize


def options(dtype: DType) -> tuple[str, ...]:
    """Build options of the tile."""
    return (f"-DWIDTH={width(dtype)}",)


def sizes(m: int, n: int, dtype: DType, batch: int = 1) -> tuple[int, int, int]:
    """Work-items for a (batch of) (m, n) product."""
    return -(-n // (8 * width(dtype))) * LOCAL[0], -(-m // ROWS) * LOCAL[1], batch
