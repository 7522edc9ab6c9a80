"""conv2d: two-dimensional convolution (correlation) of images in NCHW order, with groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_plan import OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin import tile
from polymux.kernel.builtin.opencl import image_group, int32, launch, pointers, type_option
from polymux.kernel.builtin.window import STEPS, WindowAxis, axis_of
from polymux.kernel.definition import Definition
from polymux.kernel.team import Team

SPEC = KernelSpec(
    "conv2d",
    inputs=(BufferParam("x", check.FLOATS), BufferParam("weight", check.FLOATS)),
    outputs=(BufferParam("y", check.FLOATS),),
    scalars=(*STEPS, ScalarParam("groups", DType.I32, 1)),
    idempotent=True,
    doc="y = x correlated with weight, as neural networks use it: x (N, C, H, W), weight (O, C / groups, kernel_h,"
    " kernel_w), y (N, O, positions_h, positions_w) with positions = (size + 2 padding - dilation (kernel - 1) - 1)"
    " // stride + 1.",
)
_PARAMETERS = """
    __global const T *x, __global const T *weight, __global T *y, int channels, int height, int width, int outputs,
    int kernel_h, int kernel_w, int stride_h, int stride_w, int padding_h, int padding_w, int dilation_h,
    int dilation_w, int groups, int positions_h, int positions_w"""
_DIMENSIONS = """
  const long image = get_global_id(2) / groups, group = get_global_id(2) % groups;
  const long depth = (long)(channels / groups) * kernel_h * kernel_w;
  const long m = outputs / groups, n = (long)positions_h * positions_w;
  x += (image * channels + group * (channels / groups)) * height * width;
  weight += group * m * depth;
  y += (image * outputs + group * m) * n;
"""
TILE_LOADS = """
// Where the windows of this tile's columns begin, and where the taps of its summands lie within a window.
#define PREPARE                                                                                          \\
  __local int top[TILE_COLUMNS], left[TILE_COLUMNS], tap_row[TILE_K], tap_column[TILE_K];                \\
  __local long tap_plane[TILE_K];                                                                        \\
  for (int j = item; j < TILE_COLUMNS; j += ITEMS) {                                                     \\
    const long position = min(column0 + j, n - 1);                                                       \\
    top[j] = (int)(position / positions_w) * stride_h - padding_h;                                       \\
    left[j] = (int)(position % positions_w) * stride_w - padding_w;                                      \\
  }
#define LOAD_A LOAD_TILE(a_tile, TILE_ROWS, weight, row0, m, depth, 1)
#define LOAD_B                                                                                           \\
  if (item < TILE_K) {                                                                                   \\
    const long k = min(k0 + item, depth - 1);                                                            \\
    const int tap = (int)(k % (kernel_h * kernel_w));                                                    \\
    tap_plane[item] = k / (kernel_h * kernel_w) * height * width;                                        \\
    tap_row[item] = tap / kernel_w * dilation_h;                                                         \\
    tap_column[item] = tap % kernel_w * dilation_w;                                                      \\
  }                                                                                                      \\
  barrier(CLK_LOCAL_MEM_FENCE);                                                                          \\
  for (int s = item; s < TILE_K * TILE_COLUMNS; s += ITEMS) {                                            \\
    const int j = s % TILE_COLUMNS, kk = s / TILE_COLUMNS;                                               \\
    const int row = top[j] + tap_row[kk], column = left[j] + tap_column[kk];                             \\
    const int inside = row >= 0 && row < height && column >= 0 && column < width && k0 + kk < depth;     \\
    b_tile[kk][j] = inside ? x[tap_plane[kk] + (long)row * width + column] : (T)0;                       \\
  }
#define STORE(row, column, value) y[(row) * n + (column)] = (value)
"""
"""Before a kernel with the parameters of `conv2d`: what fills the tiles of `tile.BODY`."""
SOURCE = f"""{tile.DEFINITIONS}{TILE_LOADS}
// The product of weight (m, depth) and the windows (depth, n), which exist only tile by tile.
__kernel __attribute__((reqd_work_group_size(8, 8, 1))) void conv2d_tiles({_PARAMETERS}) {{
{_DIMENSIONS}{tile.BODY}}}

// One work-item per element of y: for groups of few outputs, which would leave a tile empty. Dimensions: position_w,
// position_h, (image, group, output of the group).
__kernel void conv2d_elements({_PARAMETERS}) {{
  const int ox = get_global_id(0), oy = get_global_id(1);
  if (ox >= positions_w || oy >= positions_h) return;
  const int output = (int)(get_global_id(2) % outputs), depth = channels / groups;
  x += (get_global_id(2) / outputs * channels + output / (outputs / groups) * depth) * height * width;
  weight += (long)output * depth * kernel_h * kernel_w;
  const int top = oy * stride_h - padding_h, left = ox * stride_w - padding_w;
  T sum = 0;
  for (int channel = 0; channel < depth; ++channel) {{
    for (int ky = 0; ky < kernel_h; ++ky) {{
      const int row = top + ky * dilation_h;
      for (int kx = 0; kx < kernel_w; ++kx, ++weight) {{
        const int column = left + kx * dilation_w;
        const int inside = row >= 0 && row < height && column >= 0 && column < width;
        if (inside) sum += *weight * x[((long)channel * height + row) * width + column];
      }}
    }}
  }}
  y[(get_global_id(2) * positions_h + oy) * positions_w + ox] = sum;
}}
"""
TILES_FROM = 16
"""Outputs per group from which on tiles are used."""
COLUMNS_NBYTES = 1 << 19
"""Windows that the cpu version lays out at a time: what a core's cache holds."""
LINE_NBYTES = 1 << 26
"""The same where a single row of positions has more; the row is divided then."""
PADDED_NBYTES = 1 << 26
"""An image that padding makes larger than this, and more than four times as large as it was, is refused."""


@dataclass(frozen=True, slots=True)
class _Geometry:
    images: int
    channels: int
    outputs: int
    groups: int
    h: WindowAxis
    w: WindowAxis

    @property
    def depth(self) -> int:
        return self.channels // self.groups * self.h.kernel * self.w.kernel


def conv2d(x: NDArray[Any], weight: NDArray[Any], y: NDArray[Any], *, team: Team, **scalars: int) -> None:
    """Windows laid out as columns (K. Chellapilla et al., 2006) for some rows of y at a time, then NumPy's BLAS."""
    geometry = _geometry({"x": x, "weight": weight, "y": y}, scalars)
    if y.size == 0:
        return
    strips = _strips(geometry, x.itemsize)

    def body(begin: int, end: int) -> None:
        _compute(x, weight, y, geometry, strips, begin, end)

    team.parallel_for(geometry.images * strips.count, body)


def correlate(
    x: NDArray[Any],
    weight: NDArray[Any],
    y: NDArray[Any],
    groups: int,
    h: WindowAxis,
    w: WindowAxis,
    product: Callable[..., Any] = np.matmul,
) -> None:
    """Compute all of y in the calling thread, as `conv2d`; operands are not checked, each image of y is contiguous.

    `product` multiplies (weights, columns, into) of all groups.
    """
    geometry = _Geometry(len(x), x.shape[1], len(weight), groups, h, w)
    strips = _strips(geometry, x.itemsize)
    _compute(x, weight, y, geometry, strips, 0, geometry.images * strips.count, product)


@dataclass(frozen=True, slots=True)
class _Strips:
    """`count` strips of an image's `rows` rows of positions, each laid out `width` positions of a row at a time."""

    rows: int
    count: int
    width: int


def _strips(geometry: _Geometry, itemsize: int) -> _Strips:
    row_nbytes = geometry.depth * geometry.groups * geometry.w.positions * itemsize
    rows = min(geometry.h.positions, max(1, COLUMNS_NBYTES // max(row_nbytes, 1)))
    lines = -(-row_nbytes // LINE_NBYTES) if rows == 1 else 1
    return _Strips(rows, -(-geometry.h.positions // rows), -(-geometry.w.positions // max(lines, 1)))


def _compute(
    x: NDArray[Any],
    weight: NDArray[Any],
    y: NDArray[Any],
    geometry: _Geometry,
    strips: _Strips,
    begin: int,
    end: int,
    product: Callable[..., Any] = np.matmul,
) -> None:
    """Compute the strips from `begin` to `end`, counted through all images."""
    padded = None
    for strip in range(begin, end):
        image, first = strip // strips.count, strip % strips.count * strips.rows
        if padded is None or first == 0:
            padded = _windows(x[image], geometry)
        last = min(first + strips.rows, geometry.h.positions)
        for left in range(0, geometry.w.positions, strips.width):
            windows = padded[:, :, :, first:last, left : left + strips.width]
            _strip(windows, weight, y[image], first * geometry.w.positions + left, geometry, product)


def _windows(image: NDArray[Any], geometry: _Geometry) -> NDArray[Any]:
    """View of the padded image as (channel, tap row, tap column, position row, position column)."""
    h, w = geometry.h, geometry.w
    if h.padding or w.padding:
        _check_padding(image, h, w)
        image = np.pad(image, ((0, 0), (h.padding, h.padding), (w.padding, w.padding)))
    channel, row, column = image.strides
    return np.lib.stride_tricks.as_strided(
        image,
        (geometry.channels, h.kernel, w.kernel, h.positions, w.positions),
        (channel, row * h.dilation, column * w.dilation, row * h.stride, column * w.stride),
        writeable=False,
    )


def _check_padding(image: NDArray[Any], h: WindowAxis, w: WindowAxis) -> None:
    shape = (h.size + 2 * h.padding, w.size + 2 * w.padding)
    nbytes = image.shape[0] * shape[0] * shape[1] * image.itemsize
    if nbytes > max(PADDED_NBYTES, 4 * image.nbytes):
        raise InvalidRequest(
            f"padding_h is {h.padding} and padding_w {w.padding}: an image of {h.size} by {w.size} becomes one of"
            f" {shape[0]} by {shape[1]} with {nbytes} bytes; give less padding"
        )


def _strip(
    windows: NDArray[Any],
    weight: NDArray[Any],
    y: NDArray[Any],
    begin: int,
    geometry: _Geometry,
    product: Callable[..., Any],
) -> None:
    width = windows.shape[3] * windows.shape[4]
    columns = windows.reshape(geometry.groups, geometry.depth, width)
    outputs = geometry.outputs // geometry.groups
    into = y.reshape(geometry.groups, outputs, -1)[:, :, begin : begin + width]
    product(weight.reshape(geometry.groups, outputs, geometry.depth), columns, into)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """Tiles of the implicit matrix product, or single elements for groups of few outputs."""
    arrays = check.named(spec, buffers)
    geometry = _geometry(arrays, scalars)
    if check.size(arrays["y"]) == 0:
        return OpenCLPlan()
    h, w, dtype = geometry.h, geometry.w, arrays["y"].dtype
    numbers: tuple[int, ...] = (
        geometry.channels,
        h.size,
        w.size,
        geometry.outputs,
        h.kernel,
        w.kernel,
        h.stride,
        w.stride,
    )
    numbers += (h.padding, w.padding, h.dilation, w.dilation, geometry.groups, h.positions, w.positions)
    arguments = [*pointers(3), *(int32(number) for number in numbers)]
    m, n, batch = (
        geometry.outputs // geometry.groups,
        h.positions * w.positions,
        geometry.images * geometry.groups,
    )
    if m >= TILES_FROM:
        launched = launch("conv2d_tiles", arguments, tile.sizes(m, n, dtype, batch), tile.LOCAL)
    else:
        sizes = (w.positions, h.positions, geometry.images * geometry.outputs)
        launched = launch("conv2d_elements", arguments, sizes, image_group(w.positions))
    return OpenCLPlan((launched,), (type_option(dtype), *tile.options(dtype)))


def _geometry(arrays: Mapping[str, check.Array], scalars: check.Scalars) -> _Geometry:
    check.require_same_dtypes(arrays)
    check.require_rank(arrays, "x", 4, "(N, C, H, W)")
    check.require_rank(arrays, "weight", 4, "(O, C / groups, kernel_h, kernel_w)")
    images, channels, height, width = arrays["x"].shape
    outputs, _, kernel_h, kernel_w = arrays["weight"].shape
    groups = int(scalars["groups"])
    if groups < 1 or channels % groups or outputs % groups:
        raise InvalidRequest(f"groups is {groups}, expected a divisor of C = {channels} and O = {outputs}")
    expected = (outputs, channels // groups, kernel_h, kernel_w)
    check.require_shape(arrays, "weight", expected, f"x has {channels} channels in {groups} groups")
    h, w = axis_of("h", height, kernel_h, scalars), axis_of("w", width, kernel_w, scalars)
    check.require_shape(
        arrays, "y", (images, outputs, h.positions, w.positions), "N, O and the window's positions"
    )
    check.require_apart(arrays, "y", "x", "weight")
    return _Geometry(images, channels, outputs, groups, h, w)


KERNEL = Definition(SPEC, (PythonFunction(conv2d, parallel=True), OpenCLSource(SOURCE, plan)))
