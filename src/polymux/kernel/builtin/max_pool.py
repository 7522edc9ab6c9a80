"""max_pool: the largest element that a window sees."""

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
    "max_pool",
    inputs=(BufferParam("x", check.FLOATS),),
    outputs=(BufferParam("y", check.FLOATS), pooling.TAPS),
    scalars=pooling.SCALARS,
    idempotent=True,
    doc="x (N, C, H, W) to y (N, C, positions_h, positions_w): the largest element that the window sees at each"
    " position, the padding left out, a NaN if it sees one. taps (as y, one byte each) tell which it was: tap 0 to"
    " kernel_h * kernel_w - 1, row by row, the first of equal ones.",
)
SOURCE = f"""
__kernel void max_pool(__global const T *x, __global T *y, __global uchar *taps, {pooling.PARAMETERS}) {{
  const int ox = get_global_id(0), oy = get_global_id(1);
  if (ox >= positions_w || oy >= positions_h) return;
  const long plane = get_global_id(2);
  T best = 0;
  int where = -1;
  for (int ky = 0; ky < kernel_h; ++ky) {{
    const int row = oy * stride_h - padding_h + ky;
    if (row < 0 || row >= height) continue;
    for (int kx = 0; kx < kernel_w; ++kx) {{
      const int column = ox * stride_w - padding_w + kx;
      if (column < 0 || column >= width) continue;
      const T value = x[(plane * height + row) * width + column];
      if (value > best || value != value || where < 0) {{
        best = value;
        where = ky * kernel_w + kx;
      }}
    }}
  }}
  const long at = (plane * positions_h + oy) * positions_w + ox;
  y[at] = best;
  taps[at] = (uchar)where;
}}
"""


def plan(spec: KernelSpec, buffers: Sequence[BufferView], scalars: check.Scalars) -> OpenCLPlan:
    """One work-item per element of y: position_w, position_h, (image, channel)."""
    arrays = check.named(spec, buffers)
    h, w = pooling.geometry(arrays, scalars, image="x", pooled="y")
    check.require_apart(arrays, "y", "x")
    check.require_apart(arrays, "taps", "x", "y")
    images, channels = arrays["x"].shape[:2]
    if images * channels == 0:
        return OpenCLPlan()
    sizes, group = (w.positions, h.positions, images * channels), image_group(w.positions)
    launched = launch("max_pool", [*pointers(3), *pooling.arguments(h, w)], sizes, group)
    return OpenCLPlan((launched,), (type_option(arrays["x"].dtype),))


KERNEL = Definition(SPEC, (native("max_pool"), OpenCLSource(SOURCE, plan)))
