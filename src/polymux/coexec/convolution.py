"""Two-dimensional convolution as an operation of all devices: split by images or by output channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from polymux.coexec.operation import Array, ChunkKernel, Operation, Shape, Way
from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.problem import Problem, conv2d_problem

FLOATS = ("float32", "float64")
Pair = tuple[int, int]


class Conv2d(Operation):
    """Correlation of images (N, C, H, W) with filters (O, C / groups, kernel_h, kernel_w), as networks use it."""

    name = "conv2d"
    kernels = (
        ChunkKernel("coexec_conv2d", dtypes=FLOATS),
        ChunkKernel("coexec_conv2d_bf16", "bf16", ("float32",)),
        ChunkKernel("coexec_conv2d_tf32", "tf32", ("float32",)),
        ChunkKernel("coexec_conv2d_fp16", "fp16", ("float32",)),
    )

    def outputs(self, *inputs: Array, **parameters: Any) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        """Check images, filters and parameters."""
        x, weight = inputs
        stride, padding, dilation, groups = _parameters(parameters)
        if x.ndim != 4 or weight.ndim != 4:
            raise InvalidRequest(
                f"conv2d of shapes {x.shape} and {weight.shape}: give images (N, C, H, W) and filters"
                " (O, C / groups, kernel_h, kernel_w)"
            )
        channels, outputs = x.shape[1], weight.shape[0]
        if groups < 1 or channels % groups or outputs % groups or weight.shape[1] * groups != channels:
            raise InvalidRequest(
                f"conv2d of shapes {x.shape} and {weight.shape} in {groups} groups: the filters need"
                f" {channels}/{groups} channels, and both {channels} and {outputs} must be multiples of the groups"
            )
        if min(weight.shape[2:]) < 1:
            raise InvalidRequest(f"conv2d with filters of shape {weight.shape}: they have no taps")
        size = [
            _positions(x.shape[2 + axis], weight.shape[2 + axis], stride[axis], padding[axis], dilation[axis])
            for axis in (0, 1)
        ]
        return [((x.shape[0], outputs, *size), x.dtype)]

    def of_nothing(self, results: Sequence[Array]) -> None:
        """Fill in sums over nothing."""
        for result in results:
            result[...] = 0

    def ways(self, *inputs: Array, **parameters: Any) -> Sequence[Way]:
        """Split by images, all filters for everybody; or by output channels, all images for everybody."""
        x, weight = inputs
        stride, padding, dilation, groups = _parameters(parameters)
        ((images, outputs, *positions), _), *_ = self.outputs(x, weight, **parameters)
        scalars = {
            "stride_h": stride[0],
            "stride_w": stride[1],
            "padding_h": padding[0],
            "padding_w": padding[1],
            "dilation_h": dilation[0],
            "dilation_w": dilation[1],
            "groups": groups,
        }

        def problem(by: Literal["images", "channels"]) -> Problem:
            return conv2d_problem(
                images,
                x.shape[1],
                outputs,
                (weight.shape[2], weight.shape[3]),
                (positions[0], positions[1]),
                in_size=(x.shape[2], x.shape[3]),
                groups=groups,
                stride=stride,
                itemsize=x.itemsize,
                by=by,
            )

        by_image = Way(problem("images"), (0, None), (0,), scalars=scalars)
        if images and groups != 1:
            return (by_image,)
        by_channel = Way(
            problem("channels"),
            (None, 0),
            (1,),
            first="first_output",
            count="output_count",
            scalars=scalars,
        )
        return (by_image, by_channel)


CONV2D = Conv2d()


def pair(value: int | Sequence[int], name: str) -> Pair:
    """Read an extent for height and width, given once or as two.

    Raises
    ------
    InvalidRequest
        If it is neither.
    """
    both: tuple[Any, ...] = (
        tuple(value) if isinstance(value, (Sequence, np.ndarray)) and len(value) == 2 else (value, value)
    )
    if not all(isinstance(item, (int, np.integer)) and not isinstance(item, bool) for item in both):
        raise InvalidRequest(f"{name}={value!r:.60}: give an integer, or two for height and width")
    return int(both[0]), int(both[1])


def group_count(value: int) -> int:
    """Read the number of groups.

    Raises
    ------
    InvalidRequest
        If it is no integer.
    """
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise InvalidRequest(f"groups={value!r:.60}: give an integer of 1 or more")
    return int(value)


_USUAL = (("stride", 1), ("padding", 0), ("dilation", 1))


def _parameters(parameters: dict[str, Any]) -> tuple[Pair, Pair, Pair, int]:
    stride, padding, dilation = (pair(parameters.get(name, usual), name) for name, usual in _USUAL)
    return stride, padding, dilation, group_count(parameters.get("groups", 1))


def _positions(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    if stride < 1 or dilation < 1 or padding < 0:
        raise InvalidRequest(
            f"conv2d with stride {stride}, padding {padding}, dilation {dilation}: give stride and dilation of 1 or"
            " more, padding of 0 or more"
        )
    reach = dilation * (kernel - 1) + 1
    if size + 2 * padding < reach:
        raise InvalidRequest(
            f"conv2d: filters that reach over {reach} elements do not fit into {size} + 2 x {padding}; pad more"
        )
    return (size + 2 * padding - reach) // stride + 1
