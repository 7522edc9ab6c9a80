"""bias_add, relu, max_pool, softmax_cross_entropy and their gradients, against NumPy and numerical differences."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from polymux.device.protocol import LaunchError
from tests.contract.kernels.kernel_device import KernelDevice

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WINDOWS = [
    {"kernel_h": 2, "kernel_w": 2, "stride_h": 2, "stride_w": 2},
    {"kernel_h": 3, "kernel_w": 3, "stride_h": 2, "stride_w": 1, "padding_h": 1, "padding_w": 1},
    {"kernel_h": 1, "kernel_w": 5},
    {"kernel_h": 2, "kernel_w": 3, "stride_h": 5, "stride_w": 4, "padding_h": 1},
]


def random(shape: tuple[int, ...], dtype: str = "f8", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (2, 3, 7), (64, 20, 12, 12), (0, 3), (2, 0, 4), (2, 3, 0)])
def test_bias_add_adds_a_number_per_channel(device: KernelDevice, shape: tuple[int, ...], dtype: str) -> None:
    x, bias = random(shape, dtype), random((shape[1],), dtype, 1)
    expected = x + bias.reshape(1, -1, *[1] * (len(shape) - 2))
    y = np.full_like(x, 7)
    device.run("bias_add", [x, bias], [y])
    assert y.tobytes() == expected.tobytes()
    device.run("bias_add", [x, bias], [x])
    assert x.tobytes() == expected.tobytes()


def test_bias_add_of_a_size_that_is_split_over_the_cores(device: KernelDevice) -> None:
    for shape in ((3001, 701), (300, 7, 1001)):
        x, bias = random(shape), random(shape[1:2], seed=1)
        y = np.zeros_like(x)
        device.run("bias_add", [x, bias], [y])
        assert (y == x + bias.reshape(1, -1, *[1] * (len(shape) - 2))).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (1001,), (3, 5, 7), (700, 901)])
def test_relu_and_its_gradient(device: KernelDevice, shape: tuple[int, ...], dtype: str) -> None:
    x, dy = random(shape, dtype), random(shape, dtype, 1)
    y, dx = np.full_like(x, 7), np.full_like(x, 7)
    device.run("relu", [x], [y])
    assert y.tobytes() == np.maximum(x, 0).tobytes()
    for given_x in (x, y):
        device.run("relu_gradient", [given_x, dy], [dx])
        assert dx.tobytes() == np.where(x > 0, dy, x.dtype.type(0)).tobytes()
    device.run("relu_gradient", [x, dy], [dy])
    assert dy.tobytes() == dx.tobytes()
    device.run("relu", [x], [x])
    assert x.tobytes() == y.tobytes()


def test_relu_keeps_a_nan_and_cuts_infinities(device: KernelDevice) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1.0, -1.0])
    y = np.zeros_like(x)
    device.run("relu", [x], [y])
    np.testing.assert_array_equal(y, [np.nan, np.inf, 0, 1, 0])


def pooled(x: np.ndarray, window: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """max_pool by its definition, position by position."""
    size, stride, padding = (
        [window.get(f"{name}_{axis}", default) for axis in "hw"]
        for name, default in (("kernel", 1), ("stride", 1), ("padding", 0))
    )
    shape = [(x.shape[2 + i] + 2 * padding[i] - size[i]) // stride[i] + 1 for i in range(2)]
    y, taps = np.zeros((*x.shape[:2], *shape), x.dtype), np.zeros((*x.shape[:2], *shape), "u1")
    for n, c, oy, ox in product(*(range(extent) for extent in y.shape)):
        seen = [
            (x[n, c, row, column], tap)
            for tap in range(size[0] * size[1])
            for row in [oy * stride[0] - padding[0] + tap // size[1]]
            for column in [ox * stride[1] - padding[1] + tap % size[1]]
            if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]
        ]
        y[n, c, oy, ox], taps[n, c, oy, ox] = max(seen, key=lambda one: one[0])
    return y, taps


def unpooled(dy: np.ndarray, taps: np.ndarray, shape: tuple[int, ...], window: dict[str, int]) -> np.ndarray:
    dx = np.zeros(shape, dy.dtype)
    for n, c, oy, ox in product(*(range(extent) for extent in dy.shape)):
        tap = int(taps[n, c, oy, ox])
        row = oy * window.get("stride_h", 1) - window.get("padding_h", 0) + tap // window["kernel_w"]
        column = ox * window.get("stride_w", 1) - window.get("padding_w", 0) + tap % window["kernel_w"]
        dx[n, c, row, column] += dy[n, c, oy, ox]
    return dx


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("size", [(8, 8), (9, 15), (5, 140)])
@pytest.mark.parametrize("window", WINDOWS)
def test_max_pool_and_its_gradient(
    device: KernelDevice, window: dict[str, int], size: tuple[int, int], dtype: str
) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (2, 3, *size)).astype(dtype)  # many elements are equal
    expected, expected_taps = pooled(x, window)
    y, taps = np.zeros_like(expected), np.full_like(expected_taps, 99)
    device.run("max_pool", [x], [y, taps], **window)
    assert y.tobytes() == expected.tobytes()
    assert taps.tobytes() == expected_taps.tobytes()
    dy, dx = random(expected.shape, dtype, 1), np.full_like(x, 7)
    device.run("max_pool_gradient", [dy, taps], [dx], **window)
    assert (dx == unpooled(dy, expected_taps, x.shape, window)).all()


@FEW
@given(
    height=st.integers(1, 12), width=st.integers(1, 150), kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)), seed=st.integers(0, 99),
)  # fmt: skip
def test_max_pool_of_any_window(
    device: KernelDevice, height: int, width: int, kernel: tuple[int, int], stride: tuple[int, int], seed: int
) -> None:
    assume(height >= kernel[0] and width >= kernel[1])
    window = {"kernel_h": kernel[0], "kernel_w": kernel[1], "stride_h": stride[0], "stride_w": stride[1]}
    x = random((1, 2, height, width), "f4", seed)
    expected, expected_taps = pooled(x, window)
    y, taps = np.zeros_like(expected), np.zeros_like(expected_taps)
    device.run("max_pool", [x], [y, taps], **window)
    assert y.tobytes() == expected.tobytes()
    assert taps.tobytes() == expected_taps.tobytes()


def test_max_pool_of_a_size_that_is_split_over_the_cores(device: KernelDevice) -> None:
    x = random((40, 50, 32, 34), "f4")
    window = {"kernel_h": 2, "kernel_w": 2, "stride_h": 2, "stride_w": 2}
    y, taps, dx = np.zeros((40, 50, 16, 17), "f4"), np.zeros((40, 50, 16, 17), "u1"), np.zeros_like(x)
    device.run("max_pool", [x], [y, taps], **window)
    expected = x.reshape(40, 50, 16, 2, 17, 2).max((3, 5))
    assert (y == expected).all()
    device.run("max_pool_gradient", [y, taps], [dx], **window)
    assert (dx == np.where(x == expected.repeat(2, 2).repeat(2, 3), x, 0)).all()


def test_a_window_that_sees_a_nan_pools_a_nan(device: KernelDevice) -> None:
    x = np.array([1, np.nan, 3, 5, 4, 2, 0, -np.inf], "f4").reshape(1, 1, 2, 4)
    y, taps = np.zeros((1, 1, 1, 2), "f4"), np.zeros((1, 1, 1, 2), "u1")
    device.run("max_pool", [x], [y, taps], kernel_h=2, kernel_w=2, stride_h=2, stride_w=2)
    np.testing.assert_array_equal(y.ravel(), [np.nan, 5])
    assert taps.ravel().tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("label_dtype", ["i4", "i8"])
@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (7, 10), (64, 10), (3, 1001), (0, 4), (0, 0)])
def test_softmax_cross_entropy_and_its_gradient(
    device: KernelDevice, rows: int, classes: int, label_dtype: str, dtype: str
) -> None:
    x = 20 * random((rows, classes), dtype)
    labels = np.random.default_rng(1).integers(0, max(classes, 1), rows).astype(label_dtype)
    loss, dx = np.full(rows, 7, dtype), np.full_like(x, 7)
    device.run("softmax_cross_entropy", [x, labels], [loss, dx])
    near = {"rtol": 0, "atol": 2e-5 if dtype == "f4" else 1e-13}
    exact = x.astype("f8")
    if rows:
        np.testing.assert_allclose(loss, -log_softmax(exact, axis=1)[np.arange(rows), labels], **near)
        np.testing.assert_allclose(dx, (softmax(exact, axis=1) - np.eye(classes)[labels]) / rows, **near)


def test_huge_scores_do_not_overflow(device: KernelDevice) -> None:
    x = np.array([[3e38, 0, -3e38], [-3e38, -3e38, -3e38]], "f4")
    loss, dx = np.zeros(2, "f4"), np.zeros_like(x)
    device.run("softmax_cross_entropy", [x, np.zeros(2, "i4")], [loss, dx])
    np.testing.assert_allclose(loss, [0, np.log(3)], rtol=1e-6)
    np.testing.assert_allclose(dx, [[0, 0, 0], [-1 / 3, 1 / 6, 1 / 6]], rtol=1e-6)


def test_gradients_are_those_of_numerical_differences(device: KernelDevice) -> None:
    """A chain of all of them, whose loss changes as its gradient says."""
    window = {"kernel_h": 2, "kernel_w": 2, "stride_h": 2, "stride_w": 2}
    x, bias, labels = random((3, 5, 2, 4)), random((5,), seed=1), np.array([0, 4, 9], "i4")

    def forward(at: np.ndarray) -> dict[str, np.ndarray]:
        found = {"biased": np.zeros_like(at), "cut": np.zeros_like(at), "y": np.zeros((3, 5, 1, 2))}
        found |= {"taps": np.zeros((3, 5, 1, 2), "u1"), "loss": np.zeros(3), "dy": np.zeros((3, 10))}
        device.run("bias_add", [at, bias], [found["biased"]])
        device.run("relu", [found["biased"]], [found["cut"]])
        device.run("max_pool", [found["cut"]], [found["y"], found["taps"]], **window)
        scores = found["y"].reshape(3, 10)
        device.run("softmax_cross_entropy", [scores, labels], [found["loss"], found["dy"]])
        return found

    found, dcut, dx = forward(x), np.zeros_like(x), np.zeros_like(x)
    device.run("max_pool_gradient", [found["dy"].reshape(3, 5, 1, 2), found["taps"]], [dcut], **window)
    device.run("relu_gradient", [found["biased"], dcut], [dx])
    numerical = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * 1e-6
            numerical[index] += sign * forward(moved)["loss"].mean() / 2e-6
    np.testing.assert_allclose(dx, numerical, atol=1e-8)


Given = list[tuple[tuple[int, ...], str]]
TWO = {"kernel_h": 2, "kernel_w": 2}


@pytest.mark.parametrize(
    ("kernel", "inputs", "outputs", "scalars", "message"),
    [
        ("bias_add", [((3,), "f4"), ((3,), "f4")], [((3,), "f4")], {}, r"x has shape \(3,\), expected 2 or more"),
        ("bias_add", [((3, 4), "f4"), ((3,), "f4")], [((3, 4), "f4")], {}, r"bias has shape \(3,\), expected \(4,\)"),
        ("bias_add", [((3, 4), "f4"), ((4,), "f8")], [((3, 4), "f4")], {}, r"bias has dtype f8, expected f4"),
        ("bias_add", [((3, 4), "f4"), ((4,), "f4")], [((4, 3), "f4")], {}, r"y has shape \(4, 3\)"),
        ("relu", [((3, 4), "f4")], [((12,), "f4")], {}, r"y has shape \(12,\), expected \(3, 4\)"),
        ("relu", [((3,), "i4")], [((3,), "i4")], {}, r"x has dtype i4, expected one of f4, f8"),
        ("relu_gradient", [((3,), "f4"), ((4,), "f4")], [((3,), "f4")], {}, r"dy has shape \(4,\), expected \(3,\)"),
        ("max_pool", [((4, 4), "f4")], [((2, 2), "f4"), ((2, 2), "u1")], TWO, r"x has shape \(4, 4\), expected 4 dim"),
        ("max_pool", [((1, 1, 4, 4), "f4")], [((1, 1, 3, 3), "f4"), ((1, 9), "u1")], TWO | {"stride_h": 0}, "stride_h"),
        ("max_pool", [((1, 1, 4, 4), "f4")], [((1, 1, 2, 2), "f4"), ((1, 9), "u1")], TWO, r"y has .*\(1, 1, 3, 3\)"),
        (
            "max_pool", [((1, 2, 4, 4), "f4")], [((1, 2, 3, 3), "f4"), ((2, 9), "u1")], TWO,
            r"taps has shape \(2, 9\), expected \(1, 2, 3, 3\)",
        ),
        ("max_pool", [((1, 1, 4, 4), "f4")], [((1, 1, 3, 3), "f4"), ((1, 1, 3, 3), "i4")], TWO, r"taps has dtype i4"),
        ("max_pool", [((1, 1, 4, 4), "f4")], [((1, 1, 3, 3), "f8"), ((1, 1, 3, 3), "u1")], TWO, "y has dtype f8"),
        ("max_pool", [((1, 1, 1, 4), "f4")], [((1, 9), "f4"), ((1, 9), "u1")], TWO, r"less than the window's 2"),
        ("max_pool", [((1, 1, 0, 4), "f4")], [((1, 5), "f4"), ((1, 5), "u1")], TWO | {"padding_h": 1}, r"no elements"),
        ("max_pool", [((1, 1, 4, 4), "f4")], [((1, 9), "f4"), ((1, 9), "u1")], TWO | {"padding_w": 2}, "padding_w is"),
        (
            "max_pool", [((1, 1, 16, 16), "f4")], [((1, 1), "f4"), ((1, 1), "u1")], {"kernel_h": 16, "kernel_w": 16},
            r"16 x 16 taps, expected at most 255",
        ),
        ("max_pool_gradient", [((1, 8), "f4"), ((1, 9), "u1")], [((1, 1, 4, 4), "f4")], TWO, r"dy has shape \(1, 8\)"),
        (
            "softmax_cross_entropy", [((3, 4), "f4"), ((4,), "i4")], [((3,), "f4"), ((3, 4), "f4")], {},
            r"labels has shape \(4,\), expected \(3,\)",
        ),
        (
            "softmax_cross_entropy", [((3, 4), "f4"), ((3,), "u1")], [((3,), "f4"), ((3, 4), "f4")], {},
            r"labels has dtype u1, expected one of i4, i8",
        ),
        (
            "softmax_cross_entropy", [((3, 4), "f4"), ((3,), "i4")], [((3,), "f8"), ((3, 4), "f4")], {},
            r"loss has dtype f8, expected f4",
        ),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_are_named(
    device: KernelDevice, kernel: str, inputs: Given, outputs: Given, scalars: dict[str, int], message: str
) -> None:
    arrays = [[np.ones(shape, dtype) for shape, dtype in group] for group in (inputs, outputs)]
    with pytest.raises(LaunchError, match=message):
        device.run(kernel, *arrays, **scalars)
    assert all((array == 1).all() for array in arrays[1])


@pytest.mark.parametrize("label", [-1, 4, 2**31 - 1])
def test_a_label_without_a_class_is_named_or_gives_nan(device: KernelDevice, label: int) -> None:
    x, labels = np.ones((2, 4), "f4"), np.array([1, label], "i4")
    loss, dx = np.zeros(2, "f4"), np.zeros_like(x)
    if device.device.spec.api == "cpu":
        with pytest.raises(LaunchError, match=rf"labels\[1\] is {label}, expected 0 to 3"):
            device.run("softmax_cross_entropy", [x, labels], [loss, dx])
    else:
        device.run("softmax_cross_entropy", [x, labels], [loss, dx])
        assert np.isnan(loss).tolist() == [False, True]
        assert np.isnan(dx).all(axis=1).tolist() == [False, True]


@pytest.mark.parametrize(("tap", "padding"), [(4, 0), (255, 0), (0, 1)])
def test_taps_that_lead_out_of_the_image_are_refused_or_add_nothing(
    device: KernelDevice, tap: int, padding: int
) -> None:
    window = TWO | {"padding_h": padding, "padding_w": padding}
    positions = 3 + 2 * padding
    shape = (1, 1, positions, positions)
    dy, taps, dx = np.ones(shape, "f4"), np.full(shape, 3 - 3 * padding, "u1"), np.full((1, 1, 4, 4), 7, "f4")
    taps[0, 0, 0, 0] = tap
    if device.device.spec.api == "cpu":
        with pytest.raises(LaunchError, match="taps names a tap outside the window or the image"):
            device.run("max_pool_gradient", [dy, taps], [dx], **window)
    else:
        device.run("max_pool_gradient", [dy, taps], [dx], **window)
        assert 0 < dx.sum() < positions**2
