"""Windows that pool images: what max_pool and its gradient share."""

from __future__ import annotations

from collections.abc import Mapping

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import BufferParam
from polymux.core.opencl_plan import OpenCLArgument
from polymux.kernel.builtin import operands as check
from polymux.kernel.builtin.opencl import int32
from polymux.kernel.builtin.window import KERNEL_SIZES, STEPS, WindowAxis, axis_of

MAX_TAPS = 255
"""Elements that a window sees; one byte holds which of them was the largest."""
TAPS = BufferParam("taps", (DType.U8,))
SCALARS = (*KERNEL_SIZES, *(step for step in STEPS if not step.name.startswith("dilation")))
PARAMETERS = """int height, int width, int kernel_h, int kernel_w, int stride_h, int stride_w, int padding_h,
    int padding_w, int positions_h, int positions_w"""


def geometry(
    arrays: Mapping[str, check.Array], scalars: check.Scalars, *, image: str, pooled: str
) -> tuple[WindowAxis, WindowAxis]:
    """Check an image against its pooled one and the taps; return the window's axes."""
    check.require_same_dtypes({name: arrays[name] for name in arrays if name != "taps"})
    check.require_rank(arrays, image, 4, "(N, C, H, W)")
    images, channels, height, width = arrays[image].shape
    undilated = {**scalars, "dilation_h": 1, "dilation_w": 1}
    h = axis_of("h", height, int(scalars["kernel_h"]), undilated)
    w = axis_of("w", width, int(scalars["kernel_w"]), undilated)
    for name, axis in (("h", h), ("w", w)):
        if axis.size == 0:
            raise InvalidRequest(f"{image} has shape {arrays[image].shape}: no elements have no maximum")
        if axis.padding > axis.kernel // 2:
            raise InvalidRequest(
                f"padding_{name} is {axis.padding}, expected at most half of the window's {axis.kernel}"
            )
    if h.kernel * w.kernel > MAX_TAPS:
        raise InvalidRequest(f"the window has {h.kernel} x {w.kernel} taps, expected at most {MAX_TAPS}")
    expected = (images, channels, h.positions, w.positions)
    for name in (pooled, "taps"):
        check.require_shape(arrays, name, expected, "N, C and the window's positions")
    return h, w


def arguments(h: WindowAxis, w: WindowAxis) -> list[OpenCLArgument]:
    """Arguments of `PARAMETERS`."""
    numbers = (h.size, w.size, h.kernel, w.kernel, h.stride, w.stride, h.padding, w.padding)
    return [int32(number) for number in (*numbers, h.positions, w.positions)]
