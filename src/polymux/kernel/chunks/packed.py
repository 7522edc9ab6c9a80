"""OpenCL chunks for CPUs: factors packed for streaming, blocks of the result in vector registers.

A work-item computes whole blocks of ``TILE_ROWS`` rows by ``TILE_VECTORS`` vectors, as the inner kernels of BLAS do: in
each step of the sum it reads one number per row and all vectors of a row of the other factor. The rows of the first
factor were packed by a launch before, so that a block's numbers follow each other; of the second factor each work-item
packs the columns that it needs, for the rows of the cache block.

References
----------
K. Goto, R. A. van de Geijn: Anatomy of High-Performance Matrix Multiplication. ACM TOMS 34(3), 2008.
F. G. Van Zee, R. A. van de Geijn: BLIS. ACM TOMS 41(3), 2015.
"""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.kernel.builtin.opencl import type_option


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of the blocks.

    Parameters
    ----------
    rows : int
        Rows of the block in registers.
    vectors : int
        Vectors in each of these rows.
    vector_nbytes : int
    depth : int
        Terms of the sum for which a work-item packs its columns at a time.
    block_rows : int
        Rows that a work-item computes with its packed columns, about.
    """

    rows: int
    vectors: int
    vector_nbytes: int
    depth: int
    block_rows: int

    def lanes(self, dtype: DType) -> int:
        """Elements of a vector."""
        return self.vector_nbytes // dtype.itemsize

    def columns(self, dtype: DType) -> int:
        """Columns of the block in registers."""
        return self.vectors * self.lanes(dtype)

    def options(self, dtype: DType) -> tuple[str, ...]:
        """Build options."""
        return (
            "-DPACKED",
            type_option(dtype),
            f"-DLANES={self.lanes(dtype)}",
            f"-DTILE_ROWS={self.rows}",
            f"-DTILE_VECTORS={self.vectors}",
            f"-DTILE_DEPTH={self.depth}",
        )


TILES = (
    Tile(8, 2, 64, 512, 384),
    Tile(14, 2, 64, 512, 392),
    Tile(8, 3, 64, 512, 384),
    Tile(6, 2, 32, 512, 384),
    Tile(4, 2, 16, 512, 256),
)
"""By the scalar ``tile``: for processors with 32 vectors of 64 bytes, with 16 of 32, and with 16 of 16; the first is
the default. Calibration stores the numbers, so new ones go to the end."""


def tile_of(number: int) -> Tile:
    """Find the tile of a number.

    Raises
    ------
    InvalidRequest
        If there is none.
    """
    if not 0 <= number < len(TILES):
        raise InvalidRequest(f"tile is {number}, expected 0 to {len(TILES) - 1}")
    return TILES[number]


MOST_ROWS = 14

_ROWS = "\n".join(
    f"#define ROWS_{count}(F) " + " ".join(f"F({row})" for row in range(count))
    for count in range(1, MOST_ROWS + 1)
)
_VECTORS = "\n".join(
    f"#define VECTORS_{count}(F, r) " + " ".join(f"F(r, {vector})" for vector in range(count))
    for count in range(1, 5)
)

DEFINITIONS = f"""
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define GLUE_(a, b) a##b
#define GLUE(a, b) GLUE_(a, b)
typedef GLUE(T, LANES) lanes_t;
#define TIE_(a, b) a##b
#define TIE(a, b) TIE_(a, b)
#define LOAD TIE(vload, LANES)
#define SAVE TIE(vstore, LANES)
#define TILE_COLUMNS (TILE_VECTORS * LANES)
{_ROWS}
{_VECTORS}
#define EACH_ROW(F) JOIN(ROWS_, TILE_ROWS)(F)
#define EACH_VECTOR(F, r) GLUE(VECTORS_, TILE_VECTORS)(F, r)
#define ZERO_ONE(r, v) lanes_t sum##r##_##v = 0;
#define ZERO_ROW(r) EACH_VECTOR(ZERO_ONE, r)
#define COLUMN_ONE(r, v) const lanes_t column##v = LOAD(v, columns);
#define ADD_ONE(r, v) sum##r##_##v += factor##r * column##v;
#define ADD_ROW(r) const lanes_t factor##r = rows[r]; EACH_VECTOR(ADD_ONE, r)
"""

PACK_ROWS = """
// packed[block][k][TILE_ROWS] = a[first + block * TILE_ROWS + row][k]; rows from `count` on are 0. Dimensions: parts of
// the sum, blocks of rows of a group, groups.
__kernel void pack_rows(__global const T *a, __global T *packed, long first, long count, long depth, long part) {
  const long k0 = get_global_id(0) * part, end = min(k0 + part, depth);
  const long block = get_global_id(1), blocks = get_global_size(1), group = get_global_id(2);
  __global T *into = packed + ((group * blocks + block) * depth + k0) * TILE_ROWS;
  const long row0 = block * TILE_ROWS;
  __global const T *from = a + (first + group * count + row0) * depth;
  if (row0 + TILE_ROWS <= count) {
    for (long k = k0; k < end; ++k, into += TILE_ROWS) {
#define PACK_ONE(r) into[r] = from[r * depth + k];
      EACH_ROW(PACK_ONE)
    }
  } else {
    for (long k = k0; k < end; ++k, into += TILE_ROWS)
      for (int r = 0; r < TILE_ROWS; ++r) into[r] = row0 + r < count ? from[r * depth + k] : (T)0;
  }
}
"""

MULTIPLY = """
// c[first + row][first_column + column] += or = the product of packed rows and b, for one panel of columns and
// block_rows blocks of rows. Dimensions: panels, groups of blocks.
__kernel void multiply_packed(
    __global const T *packed, __global const T *b, __global T *c, long first, long count, long first_column,
    long columns_end, long n, long depth, long block_rows, __local T *panel) {
  const long column0 = first_column + (long)get_global_id(0) * TILE_COLUMNS;
  const long blocks = (count + TILE_ROWS - 1) / TILE_ROWS;
  const long block0 = get_global_id(1) * block_rows, last = min(block0 + block_rows, blocks);
  const int whole = column0 + TILE_COLUMNS <= columns_end;
  for (long k0 = 0; k0 < depth; k0 += TILE_DEPTH) {
    const long steps = min((long)TILE_DEPTH, depth - k0);
    __global const T *from = b + k0 * n + column0;
    if (whole) {
      for (long k = 0; k < steps; ++k, from += n)
        for (int v = 0; v < TILE_VECTORS; ++v) SAVE(LOAD(v, from), k * TILE_VECTORS + v, panel);
    } else {
      for (long k = 0; k < steps; ++k, from += n)
        for (int j = 0; j < TILE_COLUMNS; ++j)
          panel[k * TILE_COLUMNS + j] = column0 + j < columns_end ? from[j] : (T)0;
    }
    for (long block = block0; block < last; ++block) {
      __global const T *rows = packed + (block * depth + k0) * TILE_ROWS;
      __local const T *columns = panel;
      EACH_ROW(ZERO_ROW)
      for (long k = 0; k < steps; ++k, rows += TILE_ROWS, columns += TILE_COLUMNS) {
        EACH_VECTOR(COLUMN_ONE, 0)
        EACH_ROW(ADD_ROW)
      }
      const long row0 = block * TILE_ROWS;
      __global T *into = c + (first + row0) * n + column0;
      if (whole && row0 + TILE_ROWS <= count) {
        if (k0 == 0) {
#define SAVE_ONE(r, v) SAVE(sum##r##_##v, v, into + r * n);
#define SAVE_ROW(r) EACH_VECTOR(SAVE_ONE, r)
          EACH_ROW(SAVE_ROW)
        } else {
#define MORE_ONE(r, v) SAVE(LOAD(v, into + r * n) + sum##r##_##v, v, into + r * n);
#define MORE_ROW(r) EACH_VECTOR(MORE_ONE, r)
          EACH_ROW(MORE_ROW)
        }
      } else {
        T part[TILE_ROWS * TILE_COLUMNS];
#define PART_ONE(r, v) SAVE(sum##r##_##v, v, part + r * TILE_COLUMNS);
#define PART_ROW(r) EACH_VECTOR(PART_ONE, r)
        EACH_ROW(PART_ROW)
        for (long r = 0; r < TILE_ROWS && row0 + r < count; ++r)
          for (long j = 0; j < TILE_COLUMNS && column0 + j < columns_end; ++j)
            into[r * n + j] = (k0 ? into[r * n + j] : (T)0) + part[r * TILE_COLUMNS + j];
      }
    }
  }
}
"""

ROWS_AT_ONCE, TAPS_AT_ONCE = 16, 256
"""Rows of an image, and taps, that a work-item spreads and places."""

CORRELATE = f"""
#define ROWS_AT_ONCE {ROWS_AT_ONCE}
#define TAPS_AT_ONCE {TAPS_AT_ONCE}
// Images spread for reading: spread[image][channel][phase_h][phase_w][rows][row]: of the padded image those rows and
// columns that have a remainder of phase_h and phase_w when divided by the stride. Neighbouring positions of a window
// read neighbouring elements then, whatever the stride. Dimensions: parts of ROWS_AT_ONCE rows, phases, image and
// channel.
__kernel void spread_images(
    __global const T *x, __global T *spread, long first_image, long all_channels, long first_channel, long channels,
    int height, int width, int stride_h, int stride_w, int padding_h, int padding_w, int phases_w, int rows, int row) {{
  const int at0 = get_global_id(0) * ROWS_AT_ONCE, phase = get_global_id(1), phases = get_global_size(1);
  const long plane = get_global_id(2), image = plane / channels, channel = plane % channels;
  const long x0 = phase % phases_w - padding_w;
  // positions from `begin` to `end` are within the image
  const int begin = (int)min((long)row, x0 < 0 ? (-x0 + stride_w - 1) / stride_w : 0);
  const int end = (int)clamp((width - x0 + stride_w - 1) / stride_w, (long)begin, (long)row);
  for (int at = at0; at < min(at0 + ROWS_AT_ONCE, rows); ++at) {{
    __global T *into = spread + ((plane * phases + phase) * rows + at) * row;
    const long y = (long)at * stride_h + phase / phases_w - padding_h;
    if (y < 0 || y >= height) {{
      for (int j = 0; j < row; ++j) into[j] = 0;
      continue;
    }}
    __global const T *from =
        x + (((first_image + image) * all_channels + first_channel + channel) * height + y) * width + x0;
    for (int j = 0; j < begin; ++j) into[j] = 0;
    if (stride_w == 1)
      for (int j = begin; j < end; ++j) into[j] = from[j];
    else
      for (int j = begin; j < end; ++j) into[j] = from[(long)j * stride_w];
    for (int j = end; j < row; ++j) into[j] = 0;
  }}
}}

// Where the elements of each tap lie in the spread image, seen from the window's position.
__kernel void place_taps(
    __global int *places, int depth, int kernel_h, int kernel_w, int stride_h, int stride_w, int dilation_h,
    int dilation_w, int phases_h, int phases_w, int rows, int row) {{
  const int k0 = get_global_id(0) * TAPS_AT_ONCE;
  for (int k = k0; k < min(k0 + TAPS_AT_ONCE, depth); ++k) {{
    const int tap = k % (kernel_h * kernel_w), channel = k / (kernel_h * kernel_w);
    const int y = tap / kernel_w * dilation_h, x = tap % kernel_w * dilation_w;
    const int phase = (channel * phases_h + y % stride_h) * phases_w + x % stride_w;
    places[k] = (phase * rows + y / stride_h) * row + x / stride_w;
  }}
}}

// y[image][first + row] for one panel of positions, counted through rows of the spread image. Dimensions: panels,
// groups of blocks of outputs, image and group of channels.
__kernel void correlate_packed(
    __global const T *packed, __global const T *spread, __global const int *places, __global T *y, long first_image,
    long all_outputs, long first, long count, long depth, long block_rows, long groups, long image_size,
    int positions_h, int positions_w, int row) {{
  const long position0 = (long)get_global_id(0) * TILE_COLUMNS;
  const long blocks = (count + TILE_ROWS - 1) / TILE_ROWS;
  const long block0 = get_global_id(1) * block_rows, last = min(block0 + block_rows, blocks);
  const long image = get_global_id(2) / groups, group = get_global_id(2) % groups;
  const long positions = (long)positions_h * positions_w;
  __global const T *from = spread + (image * groups + group) * image_size + position0;
  y += ((first_image + image) * all_outputs + first + group * count) * positions;
  // per vector: where its first lane goes if its lanes stay together, else -1; per lane: where it goes, or -1
  int target[TILE_COLUMNS], together[TILE_VECTORS];
  for (int j = 0; j < TILE_COLUMNS; ++j) {{
    const long at = position0 + j;
    const long oy = at / row, ox = at % row;
    target[j] = oy < positions_h && ox < positions_w ? (int)(oy * positions_w + ox) : -1;
  }}
  for (int v = 0; v < TILE_VECTORS; ++v) {{
    const int begin = target[v * LANES], end = target[v * LANES + LANES - 1];
    together[v] = begin >= 0 && end - begin == LANES - 1 ? begin : -1;
  }}
  for (long block = block0; block < last; ++block) {{
    __global const T *rows = packed + (group * blocks + block) * depth * TILE_ROWS;
    EACH_ROW(ZERO_ROW)
    for (long k = 0; k < depth; ++k, rows += TILE_ROWS) {{
      __global const T *columns = from + places[k];
      EACH_VECTOR(COLUMN_ONE, 0)
      EACH_ROW(ADD_ROW)
    }}
    const long row0 = block * TILE_ROWS;
    T part[LANES];
    __global T *into = y + row0 * positions;
#define PUT_ONE(r, v)                                                              \\
  if (row0 + r < count) {{                                                          \\
    if (together[v] >= 0) {{                                                        \\
      SAVE(sum##r##_##v, 0, into + r * positions + together[v]);                   \\
    }} else {{                                                                       \\
      SAVE(sum##r##_##v, 0, part);                                                 \\
      for (int j = 0; j < LANES; ++j)                                              \\
        if (target[v * LANES + j] >= 0) into[r * positions + target[v * LANES + j]] = part[j]; \\
    }}                                                                              \\
  }}
#define PUT_ROW(r) EACH_VECTOR(PUT_ONE, r)
    EACH_ROW(PUT_ROW)
  }}
}}
"""
