"""col2im: sums the columns of im2col back into images; its adjoint."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.im2col import PARAMETERS, geometry, window_arguments
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import EXACT, image_group, launch, pointers, type_option
from polymux.kernel.builtin.window import KERNEL_SIZES, STEPS
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "col2im",
    inputs=(BufferParam("columns", check.FLOATS),),
    outputs=(BufferParam("x", check.FLOATS),),
    scalars=(*KERNEL_SIZES, *STEPS),
    idempotent=True,
    doc="columns (N, C * kernel_h * kernel_w, positions) to x (N, C, H, W): every element of columns is added where"
    " im2col would have read it. Added in the order of the taps: the same bits on every device.",
)
SOURCE = (
    EXACT
    + f"""
// One work-item per element of x gathers what the windows add to it.
__kernel void col2im(__global const T *columns, __global T *x, {PARAMETERS}) {{
  const int column = get_global_id(0), row = get_global_id(1);
  if (column >= width || row >= height) return;
  const long positions = (long)positions_h * positions_w;
  columns += get_global_id(2) * kernel_h * kernel_w * positions;
  T sum = 0;
  for (int ky = 0; ky < kernel_h; ++ky) {{
    const int y = row + padding_h - ky * dilation_h;
    if (y < 0 || y % stride_h != 0 || y / stride_h >= positions_h) continue;
    for (int kx = 0; kx < kernel_w; ++kx) {{
      const int left = column + padding_w - kx * dilation_w;
      if (left < 0 || left % stride_w != 0 || left / stride_w >= positions_w) continue;
      sum += columns[(ky * kernel_w + kx) * positions + (long)(y / stride_h) * positions_w + left / stride_w];
    }}
  }}
  x[(get_global_id(2) * height + row) * width + column] = sum;
}}
"""
)


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per element of x: column, row, (image, channel)."""
    arrays = check.named(spec, buffers)
    h, w = geometry(arrays, scalars, image="x", columns="columns")
    check.require_apart(arrays, "x", "columns")
    images, channels, height, width = arrays["x"].shape
    if images * channels * height * width == 0:
        return OpenCLPlan()
    arguments = [*pointers(2), *window_arguments(channels, h, w)]
    launched = launch("col2im", arguments, (width, height, images * channels), image_group(width))
    return OpenCLPlan((launched,), (type_option(arrays["x"].dtype),))


KERNEL = Definition(SPEC, (native("col2im"), OpenCLSource(SOURCE, plan)))
