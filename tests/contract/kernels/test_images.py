"""conv2d, im2col, col2im, against direct sums over the definition and SciPy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scipy.signal import correlate2d

from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError
from tests.contract.kernels.kernel_device import KernelDevice

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
STEPS = [
    {},
    {"padding_h": 1, "padding_w": 1},
    {"stride_h": 2, "stride_w": 3, "padding_h": 2, "padding_w": 0},
    {"dilation_h": 2, "dilation_w": 3, "padding_h": 1, "padding_w": 4},
    {"stride_h": 3, "stride_w": 2, "padding_h": 4, "padding_w": 5, "dilation_h": 3, "dilation_w": 1},
]


def random(shape: tuple[int, ...], dtype: str = "f8", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def positions(size: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def step_of(scalars: dict[str, int], axis: str) -> dict[str, int]:
    return {
        name: scalars.get(f"{name}_{axis}", default)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    }


def columns_of(x: np.ndarray, kernel: tuple[int, int], scalars: dict[str, int]) -> np.ndarray:
    """im2col by its definition, position by position."""
    h, w = step_of(scalars, "h"), step_of(scalars, "w")
    images, channels, height, width = x.shape
    out_h, out_w = positions(height, kernel[0], **h), positions(width, kernel[1], **w)
    padded = np.pad(x, ((0, 0), (0, 0), (h["padding"],) * 2, (w["padding"],) * 2))
    columns = np.zeros((images, channels, *kernel, out_h, out_w), x.dtype)
    for ky, kx, oy, ox in product(range(kernel[0]), range(kernel[1]), range(out_h), range(out_w)):
        row, column = oy * h["stride"] + ky * h["dilation"], ox * w["stride"] + kx * w["dilation"]
        columns[:, :, ky, kx, oy, ox] = padded[:, :, row, column]
    return columns.reshape(images, channels * kernel[0] * kernel[1], out_h * out_w)


def convolved(x: np.ndarray, weight: np.ndarray, groups: int, scalars: dict[str, int]) -> np.ndarray:
    outputs, _, *kernel = weight.shape
    h, w = step_of(scalars, "h"), step_of(scalars, "w")
    out = (positions(x.shape[2], kernel[0], **h), positions(x.shape[3], kernel[1], **w))
    columns = columns_of(x, (kernel[0], kernel[1]), scalars)
    columns = columns.reshape(len(x), groups, -1, columns.shape[2])
    product_ = np.einsum("gok,ngkp->ngop", weight.reshape(groups, outputs // groups, -1), columns)
    return product_.reshape(len(x), outputs, *out)


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 5)])
@pytest.mark.parametrize("scalars", STEPS)
def test_im2col_lays_out_the_windows(
    device: KernelDevice, scalars: dict[str, int], kernel: tuple[int, int], dtype: str
) -> None:
    x = np.random.default_rng(0).integers(1, 100, (2, 3, 11, 14)).astype(dtype)
    expected = columns_of(x, kernel, scalars)
    columns = np.full_like(expected, 77)
    device.run("im2col", [x], [columns], kernel_h=kernel[0], kernel_w=kernel[1], **scalars)
    assert columns.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 5)])
@pytest.mark.parametrize("scalars", STEPS)
def test_col2im_is_the_adjoint_of_im2col(
    device: KernelDevice, scalars: dict[str, int], kernel: tuple[int, int], dtype: str
) -> None:
    shape = (2, 3, 11, 14)
    columns = random(columns_of(np.zeros(shape), kernel, scalars).shape, dtype, 1)
    x = np.full(shape, 77, dtype)
    device.run("col2im", [columns], [x], kernel_h=kernel[0], kernel_w=kernel[1], **scalars)
    # <im2col(e), columns> = <e, col2im(columns)> for each element e: every element of columns goes where it came from
    where = columns_of(np.arange(1, x[0, 0].size + 1).reshape(1, 1, *shape[2:]), kernel, scalars)[0]
    expected = np.zeros((2, 3, x[0, 0].size + 1))
    for image, channel in product(range(2), range(3)):
        part = columns.reshape(2, 3, *where.shape)[image, channel]
        np.add.at(expected[image, channel], where.reshape(-1), part.reshape(-1).astype("f8"))
    np.testing.assert_allclose(
        x, expected[:, :, 1:].reshape(shape), rtol=0, atol=1e-5 if dtype == "f4" else 1e-13
    )


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("channels", "outputs", "groups"), [(3, 4, 1), (4, 32, 1), (8, 8, 8), (6, 40, 2), (5, 70, 1)]
)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 5)])
@pytest.mark.parametrize("scalars", STEPS)
def test_conv2d_correlates(
    device: KernelDevice,
    scalars: dict[str, int],
    kernel: tuple[int, int],
    channels: int,
    outputs: int,
    groups: int,
    dtype: str,
) -> None:
    x = random((2, channels, 11, 14), dtype, 1)
    weight = random((outputs, channels // groups, *kernel), dtype, 2)
    expected = convolved(x.astype("f8"), weight.astype("f8"), groups, scalars)
    y = np.full(expected.shape, np.nan, dtype)
    device.run("conv2d", [x, weight], [y], groups=groups, **scalars)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 if dtype == "f4" else 1e-13)


def test_conv2d_agrees_with_scipy(device: KernelDevice) -> None:
    x, weight = random((1, 1, 40, 37), seed=1), random((1, 1, 5, 4), seed=2)
    y = np.zeros((1, 1, 36, 34))
    device.run("conv2d", [x, weight], [y])
    np.testing.assert_allclose(y[0, 0], correlate2d(x[0, 0], weight[0, 0], mode="valid"), rtol=0, atol=1e-13)


def test_conv2d_of_an_image_that_is_done_in_strips(device: KernelDevice) -> None:
    x, weight = random((2, 40, 37, 50), "f4", 1), random((33, 40, 3, 3), "f4", 2)
    y = np.full((2, 33, 37, 50), np.nan, "f4")
    device.run("conv2d", [x, weight], [y], padding_h=1, padding_w=1)
    expected = convolved(x.astype("f8"), weight.astype("f8"), 1, {"padding_h": 1, "padding_w": 1})
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-4)


@FEW
@given(
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    step=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 3)), min_size=2, max_size=2),
    channels=st.integers(0, 3),
)
def test_im2col_and_conv2d_agree_for_any_window(
    device: KernelDevice, size: tuple[int, int], kernel: tuple[int, int], step: list[Any], channels: int
) -> None:
    scalars = {
        f"{name}_{axis}": value
        for axis, triple in zip("hw", step, strict=True)
        for name, value in zip(("stride", "padding", "dilation"), triple, strict=True)
    }
    out = [positions(size[i], kernel[i], *step[i]) for i in range(2)]
    assume(min(out) > 0)
    x, weight = random((2, channels, *size), seed=1), random((3, channels, *kernel), seed=2)
    columns = np.full((2, channels * kernel[0] * kernel[1], out[0] * out[1]), np.nan)
    device.run("im2col", [x], [columns], kernel_h=kernel[0], kernel_w=kernel[1], **scalars)
    y = np.full((2, 3, *out), np.nan)
    device.run("conv2d", [x, weight], [y], **scalars)
    np.testing.assert_allclose(y.reshape(2, 3, -1), weight.reshape(3, -1) @ columns, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "shapes", "scalars", "message"),
    [
        (
            "conv2d",
            [(1, 3, 5), (2, 3, 3, 3), (1, 2, 3, 3)],
            {},
            r"x has shape \(1, 3, 5\), expected 4 dimensions",
        ),
        (
            "conv2d",
            [(1, 3, 5, 5), (2, 4, 3, 3), (1, 2, 3, 3)],
            {},
            r"weight has shape .* expected \(2, 3, 3, 3\)",
        ),
        ("conv2d", [(1, 3, 5, 5), (2, 3, 3, 3), (1, 2, 3, 4)], {}, r"y has shape .* expected \(1, 2, 3, 3\)"),
        (
            "conv2d",
            [(1, 3, 5, 5), (2, 3, 3, 3), (1, 2, 3, 3)],
            {"groups": 2},
            r"groups is 2, expected a divisor",
        ),
        ("conv2d", [(1, 3, 5, 5), (2, 3, 3, 3), (1, 2, 3, 3)], {"groups": 0}, r"groups is 0"),
        (
            "conv2d",
            [(1, 3, 5, 5), (2, 3, 6, 3), (1, 2, 1, 3)],
            {},
            r"extent along h is 5, .* less than the window's 6",
        ),
        (
            "conv2d",
            [(1, 3, 5, 5), (2, 3, 3, 3), (1, 2, 3, 3)],
            {"stride_w": 0},
            r"stride_w is 0, expected 1 or more",
        ),
        (
            "conv2d",
            [(1, 3, 5, 5), (2, 3, 3, 3), (1, 2, 3, 3)],
            {"padding_h": -1},
            r"padding_h is -1, expected 0",
        ),
    ],
)
def test_convolutions_that_do_not_fit_are_named(
    device: KernelDevice, kernel: str, shapes: list[tuple[int, ...]], scalars: dict[str, int], message: str
) -> None:
    *inputs, output = [np.zeros(shape, "f4") for shape in shapes]
    with pytest.raises(LaunchError, match=message):
        device.run(kernel, inputs, [output], **scalars)


@pytest.mark.parametrize("kernel", ["im2col", "col2im"])
@pytest.mark.parametrize(
    ("image", "columns", "scalars", "message"),
    [
        ((1, 2, 5, 5), (1, 18, 8), {}, r"columns has shape \(1, 18, 8\), expected \(1, 18, 9\)"),
        ((1, 2, 5, 5), (1, 17, 9), {}, r"columns has shape \(1, 17, 9\), expected \(1, 18, 9\)"),
        ((2, 2, 5, 5), (1, 18, 9), {}, r"expected \(2, 18, 9\)"),
        ((2, 5, 5), (1, 18, 9), {}, r"x has shape \(2, 5, 5\), expected 4 dimensions"),
        ((1, 2, 2, 5), (1, 18, 9), {}, r"less than the window's 3"),
        ((1, 2, 5, 5), (1, 18, 9), {"dilation_h": 0}, r"dilation_h is 0, expected 1 or more"),
        ((1, 2, 5, 5), (1, 18, 9), {"kernel_w": -1}, r"kernel_w is -1, expected 1 or more"),
    ],
)
def test_windows_that_do_not_fit_are_named(
    device: KernelDevice,
    kernel: str,
    image: tuple[int, ...],
    columns: tuple[int, ...],
    scalars: dict[str, int],
    message: str,
) -> None:
    arrays = [np.zeros(image, "f4"), np.zeros(columns, "f4")]
    if kernel == "col2im":
        arrays.reverse()
    with pytest.raises(LaunchError, match=message):
        device.run(kernel, arrays[:1], arrays[1:], **({"kernel_h": 3, "kernel_w": 3} | scalars))


def test_a_long_filter_over_a_long_line_is_done_in_pieces(device: KernelDevice) -> None:
    x, weight = random((1, 1, 1, 9000), "f4"), random((1, 1, 1, 4001), "f4", 1)
    y = np.zeros((1, 1, 1, 5000), "f4")
    device.run("conv2d", [x, weight], [y])
    expected = np.correlate(x.ravel().astype("f8"), weight.ravel().astype("f8"), "valid")
    np.testing.assert_allclose(y.ravel(), expected, atol=1e-2)


def test_padding_that_makes_a_small_image_a_giant_is_refused_or_costs_nothing(device: KernelDevice) -> None:
    x, weight, y = np.ones((1, 1, 1, 1), "f4"), np.ones((1, 1, 1, 1), "f4"), np.full((1, 1, 3, 3), 7.0, "f4")
    steps = {"padding_h": 30_000, "padding_w": 30_000, "stride_h": 30_000, "stride_w": 30_000}
    if device.device.spec.api == "cpu":
        with pytest.raises(LaunchError, match="padding_h is 30000.*less padding") as failure:
            device.run("conv2d", [x, weight], [y], **steps)
        assert failure.value.code is TaskStatus.BAD_ARGUMENT
    else:
        device.run("conv2d", [x, weight], [y], **steps)
        assert y.ravel().tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]
