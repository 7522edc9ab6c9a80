"""max_pool_gradient: the gradient of max_pool, backwards."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.implementation import OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_plan import OpenCLPlan
from polymux.core.task_view import BufferView
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin import pooling
from polymux.kernel.builtin.native import native
from polymux.kernel.builtin.opencl import image_group, launch, pointers, type_option
from polymux.kernel.definition import Definition

SPEC = KernelSpec(
    "max_pool_gradient",
    inputs=(BufferParam("dy", check.FLOATS), pooling.TAPS),
    outputs=(BufferParam("dx", check.FLOATS),),
    scalars=pooling.SCALARS,
    idempotent=True,
    doc="dx (N, C, H, W): each element of dy is added where the maximum of its window was, which taps tell as max_pool"
    " wrote them; 0 elsewhere. Added window by window: the same bits on every device. Taps outside the window are an"
    " error on cpu devices and add nothing elsewhere.",
)
SOURCE = f"""
// One work-item per element of dx gathers from the windows that see it.
__kernel void max_pool_gradient(
    __global const T *dy, __global const uchar *taps, __global T *dx, {pooling.PARAMETERS}) {{
  const int column = get_global_id(0), row = get_global_id(1);
  if (column >= width || row >= height) return;
  const long plane = get_global_id(2);
  const int from_y = max(0, row + padding_h - kernel_h + stride_h) / stride_h;
  const int from_x = max(0, column + padding_w - kernel_w + stride_w) / stride_w;
  T sum = 0;
  for (int oy = from_y; oy < positions_h && oy * stride_h <= row + padding_h; ++oy) {{
    for (int ox = from_x; ox < positions_w && ox * stride_w <= column + padding_w; ++ox) {{
      const long at = (plane * positions_h + oy) * positions_w + ox;
      const int tap = (row + padding_h - oy * stride_h) * kernel_w + column + padding_w - ox * stride_w;
      if (taps[at] == tap) sum += dy[at];
    }}
  }}
  dx[(plane * height + row) * width + column] = sum;
}}
"""


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per element of dx: column, row, (image, channel)."""
    arrays = check.named(spec, buffers)
    h, w = pooling.geometry(arrays, scalars, image="dx", pooled="dy")
    check.require_apart(arrays, "dx", "dy", "taps")
    images, channels, height, width = arrays["dx"].shape
    if images * channels == 0:
        return OpenCLPlan()
    sizes, group = (width, height, images * channels), image_group(width)
    launched = launch("max_pool_gradient", [*pointers(3), *pooling.arguments(h, w)], sizes, group)
    return OpenCLPlan((launched,), (type_option(arrays["dx"].dtype),))


KERNEL = Definition(SPEC, (native("max_pool_gradient"), OpenCLSource(SOURCE, plan)))
