"""im2col: the windows of images as columns of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import OpenCLArgument, OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import bits_option, image_group, int32, launch, pointers
from polymux.kernel.builtin.window import KERNEL_SIZES, STEPS, WindowAxis, axis_of
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "im2col",
    inputs=(BufferParam("x"),),
    outputs=(BufferParam("columns"),),
    scalars=(*KERNEL_SIZES, *STEPS),
    idempotent=True,
    doc="x (N, C, H, W) to columns (N, C * kernel_h * kernel_w, positions): column p of an image is what the window at"
    " position p sees, in the order channel, row, column; zeros in the padding. Any dtype.",
)
PARAMETERS = """int channels, int height, int width, int kernel_h, int kernel_w, int stride_h, int stride_w,
    int padding_h, int padding_w, int dilation_h, int dilation_w, int positions_h, int positions_w"""
SOURCE = f"""
__kernel void im2col(__global const T *x, __global T *columns, {PARAMETERS}) {{
  const int ox = get_global_id(0), oy = get_global_id(1);
  if (ox >= positions_w || oy >= positions_h) return;
  const long plane = get_global_id(2) / (kernel_h * kernel_w);
  const int tap = (int)(get_global_id(2) % (kernel_h * kernel_w));
  const int row = oy * stride_h - padding_h + tap / kernel_w * dilation_h;
  const int column = ox * stride_w - padding_w + tap % kernel_w * dilation_w;
  T value = 0;
  if (row >= 0 && row < height && column >= 0 && column < width) value = x[(plane * height + row) * width + column];
  columns[(get_global_id(2) * positions_h + oy) * positions_w + ox] = value;
}}
"""


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per element of columns: position_w, position_h, (image, channel, tap)."""
    arrays = check.named(spec, buffers)
    h, w = geometry(arrays, scalars, image="x", columns="columns")
    check.require_apart(arrays, "columns", "x")
    images, rows, _ = arrays["columns"].shape
    if images * rows == 0:
        return OpenCLPlan()
    arguments = [*pointers(2), *window_arguments(arrays["x"].shape[1], h, w)]
    launched = launch(
        "im2col", arguments, (w.positions, h.positions, images * rows), image_group(w.positions)
    )
    return OpenCLPlan((launched,), (bits_option(arrays["x"].dtype),))


def geometry(
    arrays: Mapping[str, check.Array], scalars: check.Scalars, *, image: str, columns: str
) -> tuple[WindowAxis, WindowAxis]:
    """Check an image against its columns; return the window's axes."""
    check.require_same_dtypes(arrays)
    check.require_rank(arrays, image, 4, "(N, C, H, W)")
    images, channels, height, width = arrays[image].shape
    h = axis_of("h", height, int(scalars["kernel_h"]), scalars)
    w = axis_of("w", width, int(scalars["kernel_w"]), scalars)
    expected = (images, channels * h.kernel * w.kernel, h.positions * w.positions)
    reason = f"N, C * kernel_h * kernel_w, {h.positions} * {w.positions} positions"
    check.require_shape(arrays, columns, expected, reason)
    return h, w


def window_arguments(channels: int, h: WindowAxis, w: WindowAxis) -> list[OpenCLArgument]:
    """Arguments of `PARAMETERS`."""
    numbers = (channels, h.size, w.size, h.kernel, w.kernel, h.stride, w.stride, h.padding, w.padding)
    return [int32(number) for number in (*numbers, h.dilation, w.dilation, h.positions, w.positions)]


KERNEL = Definition(SPEC, (native("im2col"), OpenCLSource(SOURCE, plan)))
