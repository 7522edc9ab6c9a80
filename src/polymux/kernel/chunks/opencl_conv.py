"""OpenCL programs and plans of chunks of a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polymux.core.dtype import DType
from polymux.core.kernel_spec import KernelSpec
from polymux.core.opencl_plan import BufferArgument, OpenCLArgument, OpenCLLaunch, OpenCLPlan, ScratchArgument
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin import tile
from polymux.kernel.builtin.conv2d import TILE_LOADS
from polymux.kernel.builtin.opencl import int32, launch, long, pointers, type_option
from polymux.kernel.chunks import packed
from polymux.kernel.chunks.methods import choose
from polymux.kernel.chunks.opencl_gemm import pack_rows
from polymux.kernel.chunks.parts import ConvPart, conv_part

SPREAD_NBYTES = 16 << 20
"""Spread images that are read by one launch, so that they stay in the caches; a single image may have more."""
_LARGEST_PLACE = 1 << 31

SOURCE = f"""
#ifdef PACKED
{packed.DEFINITIONS}
{packed.PACK_ROWS}
{packed.CORRELATE}
#else
{tile.DEFINITIONS}
{TILE_LOADS}
__kernel __attribute__((reqd_work_group_size(8, 8, 1))) void convolve_tiles(
    __global const T *x, __global const T *weight, __global T *y, int channels, int height, int width, int outputs,
    int kernel_h, int kernel_w, int stride_h, int stride_w, int padding_h, int padding_w, int dilation_h,
    int dilation_w, int groups, int positions_h, int positions_w, long x_begin, long x_image, long weight_begin,
    long y_begin, long y_image) {{
  const long image = get_global_id(2) / groups, group = get_global_id(2) % groups;
  const long depth = (long)(channels / groups) * kernel_h * kernel_w;
  const long m = outputs / groups, n = (long)positions_h * positions_w;
  x += x_begin + image * x_image + group * (channels / groups) * height * width;
  weight += weight_begin + group * m * depth;
  y += y_begin + image * y_image + group * m * n;
{tile.BODY}}}
#endif
"""


@dataclass(frozen=True, slots=True)
class _Spread:
    """A spread image of a channel; see ``spread_images`` in `polymux.kernel.chunks.packed`."""

    phases_h: int
    phases_w: int
    rows: int
    row: int

    @property
    def plane(self) -> int:
        """Elements."""
        return self.phases_h * self.phases_w * self.rows * self.row


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """Launch by the method that the scalars name."""
    arrays = check.named(spec, buffers)
    part = conv_part(arrays, scalars)
    method = choose(int(scalars["method"]), "opencl", "own")
    shape = packed.tile_of(int(scalars["tile"]))
    dtype: DType = arrays["y"].dtype
    if part.count == 0 or part.out_channels == 0 or part.positions == 0:
        return OpenCLPlan()
    spread = _spread(part)
    channels, outputs = arrays["x"].shape[1], arrays["y"].shape[1]
    if method.name == "packed" and part.depth and part.in_channels * spread.plane < _LARGEST_PLACE:
        return _packed(part, spread, (channels, outputs), dtype, shape)
    return _tiles(part, (channels, outputs), dtype)


def _spread(part: ConvPart) -> _Spread:
    spans = [(axis.kernel - 1) * axis.dilation for axis in (part.h, part.w)]
    phases = [min(axis.stride, span + 1) for axis, span in zip((part.h, part.w), spans, strict=True)]
    rows = part.h.positions + spans[0] // part.h.stride
    return _Spread(phases[0], phases[1], rows, part.w.positions + spans[1] // part.w.stride)


def _packed(
    part: ConvPart, spread: _Spread, whole: tuple[int, int], dtype: DType, shape: packed.Tile
) -> OpenCLPlan:
    h, w = part.h, part.w
    per_group = part.out_channels // part.groups
    blocks = -(-per_group // shape.rows)
    columns = shape.columns(dtype)
    panels = -(-((h.positions - 1) * spread.row + w.positions) // columns)
    image_nbytes = part.in_channels * spread.plane * dtype.itemsize
    images = max(1, min(part.count, SPREAD_NBYTES // image_nbytes))
    rows, image, places = (ScratchArgument(index) for index in range(3))
    steps = (
        h.stride,
        w.stride,
        h.dilation,
        w.dilation,
        spread.phases_h,
        spread.phases_w,
        spread.rows,
        spread.row,
    )
    taps: tuple[OpenCLArgument, ...] = (places, *map(int32, (part.depth, h.kernel, w.kernel, *steps)))
    factors = (part.outputs.start, per_group, part.depth)
    launches = [
        pack_rows(BufferArgument(1), rows, factors, blocks, part.groups),
        OpenCLLaunch("place_taps", taps, (-(-part.depth // packed.TAPS_AT_ONCE),), (1,)),
    ]
    window = (
        h.size,
        w.size,
        h.stride,
        w.stride,
        h.padding,
        w.padding,
        spread.phases_w,
        spread.rows,
        spread.row,
    )
    at_once = blocks if panels * images >= 64 else -(-blocks // 4)
    for first in range(part.images.start, part.images.stop, images):
        count = min(images, part.images.stop - first)
        channels = (first, whole[0], part.channels.start, part.in_channels)
        planes = (
            -(-spread.rows // packed.ROWS_AT_ONCE),
            spread.phases_h * spread.phases_w,
            count * part.in_channels,
        )
        arguments: tuple[OpenCLArgument, ...] = (
            BufferArgument(0),
            image,
            *map(long, channels),
            *map(int32, window),
        )
        launches.append(OpenCLLaunch("spread_images", arguments, planes, (1, 1, 1)))
        size = part.in_channels // part.groups * spread.plane
        numbers = (first, whole[1], *factors, at_once, part.groups, size)
        extents = (h.positions, w.positions, spread.row)
        result: tuple[OpenCLArgument, ...] = (
            rows,
            image,
            places,
            BufferArgument(2),
            *map(long, numbers),
            *map(int32, extents),
        )
        sizes = (panels, -(-blocks // at_once), count * part.groups)
        launches.append(OpenCLLaunch("correlate_packed", result, sizes, (1, 1, 1)))
    scratch = (
        part.groups * blocks * shape.rows * part.depth * dtype.itemsize,
        images * image_nbytes + columns * dtype.itemsize,
        part.depth * 4,
    )
    return OpenCLPlan(tuple(launches), shape.options(dtype), scratch)


def _tiles(part: ConvPart, whole: tuple[int, int], dtype: DType) -> OpenCLPlan:
    h, w = part.h, part.w
    numbers: tuple[int, ...] = (
        part.in_channels,
        h.size,
        w.size,
        part.out_channels,
        h.kernel,
        w.kernel,
        h.stride,
        w.stride,
    )
    numbers += (h.padding, w.padding, h.dilation, w.dilation, part.groups, h.positions, w.positions)
    pixels = h.size * w.size
    begins = (
        (part.images.start * whole[0] + part.channels.start) * pixels,
        whole[0] * pixels,
        part.outputs.start * part.depth,
        (part.images.start * whole[1] + part.outputs.start) * part.positions,
        whole[1] * part.positions,
    )
    arguments = [*pointers(3), *map(int32, numbers), *map(long, begins)]
    sizes = tile.sizes(part.out_channels // part.groups, part.positions, dtype, part.count * part.groups)
    launched = launch("convolve_tiles", arguments, sizes, tile.LOCAL)
    return OpenCLPlan((launched,), (type_option(dtype), *tile.options(dtype)))
