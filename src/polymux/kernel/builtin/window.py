"""A window that slides over images in NCHW order: the geometry of conv2d, im2col and col2im."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import ScalarParam
from polymux.kernel.builtin.operands import Scalars

AXES = ("h", "w")

KERNEL_SIZES = tuple(ScalarParam(f"kernel_{axis}", DType.I32) for axis in AXES)
STEPS = tuple(
    ScalarParam(f"{name}_{axis}", DType.I32, default)
    for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    for axis in AXES
)
"""Scalars of the step of a window, by name: stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w."""


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """One axis of a sliding window, in elements.

    Parameters
    ----------
    size : int
        Of the image, without padding.
    kernel, stride, padding, dilation : int
        Taps of the window, step between positions, zeros on both sides, step between taps.
    positions : int
        How many places the window has.
    """

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    positions: int


def axis_of(axis: str, size: int, kernel: int, scalars: Scalars) -> WindowAxis:
    """Geometry along one axis.

    Parameters
    ----------
    axis : {"h", "w"}
    size, kernel : int
        Extents of image and window.
    scalars : mapping
        Has the names of `STEPS`.

    Raises
    ------
    InvalidRequest
        If a scalar is out of range, or the window is larger than the padded image.
    """
    least = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1}
    values = {name: int(scalars[f"{name}_{axis}"]) for name in ("stride", "padding", "dilation")} | {
        "kernel": kernel
    }
    for name, value in values.items():
        if value < least[name]:
            raise InvalidRequest(f"{name}_{axis} is {value}, expected {least[name]} or more")
    span = (kernel - 1) * values["dilation"] + 1
    room = size + 2 * values["padding"]
    if room >= 1 << 31:
        raise InvalidRequest(
            f"the image's extent along {axis} with padding is {room}, expected less than 2^31"
        )
    if room < span:
        raise InvalidRequest(
            f"the image's extent along {axis} is {size}, with padding {room}: less than the window's {span}"
        )
    positions = (room - span) // values["stride"] + 1
    return WindowAxis(size, kernel, values["stride"], values["padding"], values["dilation"], positions)
