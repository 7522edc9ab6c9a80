"""noop, copy, fill, saxpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymux.device.protocol import LaunchError
from tests.contract.kernels.kernel_device import KernelDevice

DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "bfloat16")
SHAPES = ((), (1,), (0,), (7,), (1000,), (3, 0, 5), (2, 3, 5, 7), (129, 257))
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def random_array(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Random bytes that are valid elements."""
    random = np.random.default_rng(seed)
    if dtype == "b1":
        return np.asarray(random.integers(0, 2, shape), "b1")
    if dtype == "bfloat16":
        return np.asarray(random.standard_normal(shape), ml_dtypes.bfloat16)
    return np.asarray(random.standard_normal(shape) * 100).astype(dtype)


def test_noop_takes_any_buffers_and_leaves_them_alone(device: KernelDevice) -> None:
    x, y = random_array((5,), "f4"), random_array((2, 2), "i8")
    before = y.copy()
    device.run("noop", [], [])
    device.run("noop", [x], [y])
    assert (y == before).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_copy_gives_the_same_bytes(device: KernelDevice, shape: tuple[int, ...], dtype: str) -> None:
    x = random_array(shape, dtype)
    y = np.zeros_like(x)
    device.run("copy", [x], [y])
    assert y.tobytes() == x.tobytes()


def test_copy_onto_itself_changes_nothing(device: KernelDevice) -> None:
    x = random_array((1000,), "f4")
    before = x.copy()
    device.run("copy", [x], [x])
    assert (x == before).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_fill_sets_every_element(device: KernelDevice, shape: tuple[int, ...], dtype: str) -> None:
    y = random_array(shape, dtype)
    device.run("fill", [], [y], value=1.0)
    assert y.tobytes() == np.ones_like(y).tobytes()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *[
            ("f4", value)
            for value in (0.1, 0.0, -0.0, 1e-40, 1e-50, 3.4028234e38, float("inf"), -float("inf"))
        ],
        *[
            ("f2", value)
            for value in (0.1, 0.0, -0.0, 6e-8, 2e-8, 3e-8, 65504.0, 65519.0, 1 / 3, -float("inf"))
        ],
        *[("bfloat16", value) for value in (0.1, 0.0, -0.0, 1e-40, 3.3e38, 1 / 3, 1.00390625, 1.01171875)],
        *[("i1", value) for value in (-128.0, 127.0, -0.0)],
        *[("i8", value) for value in (-(2.0**63), 2.0**62 + 2.0**20)],
        ("u8", 2.0**64 - 2.0**11),
        ("f8", 0.1),
        ("c8", 0.1),
        ("c16", -0.1),
    ],
)
def test_fill_rounds_as_numpy_does(device: KernelDevice, dtype: str, value: float) -> None:
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    y = np.zeros(5, numpy_dtype)
    device.run("fill", [], [y], value=value)
    expected = np.full(5, value).astype(numpy_dtype)
    if dtype == "bfloat16":
        # ml_dtypes rounds a double to float first; these values are not between the two
        expected = np.full(5, value, "f4").astype(numpy_dtype)
    if dtype in ("i8", "u8"):
        expected = np.full(5, int(value), numpy_dtype)
    assert y.tobytes() == expected.tobytes()


def test_fill_keeps_a_nan(device: KernelDevice) -> None:
    for dtype in ("f2", "f4", "f8"):
        y = np.zeros(3, dtype)
        device.run("fill", [], [y], value=float("nan"))
        assert np.isnan(y).all()


@pytest.mark.parametrize(
    ("dtype", "value", "why"),
    [
        ("i1", 128.0, "out of their range"),
        ("i4", 0.5, "no integer"),
        ("u8", -1.0, "out of their range"),
        ("u8", 2.0**64, "out of their range"),
        ("i8", float("nan"), "no integer"),
        ("i4", float("inf"), "no integer|out of their range"),
        ("b1", 2.0, "neither 0 nor 1|out of their range"),
        ("f4", 3.5e38, "out of their range"),
        ("f2", 65520.0, "out of their range"),
        ("bfloat16", 3.4e38, "out of their range"),
    ],
)
def test_fill_refuses_what_the_dtype_cannot_hold(
    device: KernelDevice, dtype: str, value: float, why: str
) -> None:
    y = random_array((4,), dtype)
    before = y.tobytes()
    with pytest.raises(LaunchError, match=f"value .* does not fit the elements of y .*({why})"):
        device.run("fill", [], [y], value=value)
    assert y.tobytes() == before


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_saxpy_rounds_product_and_sum(device: KernelDevice, shape: tuple[int, ...], dtype: str) -> None:
    x, y = random_array(shape, dtype, 1), random_array(shape, dtype, 2)
    out = np.empty_like(x)
    device.run("saxpy", [x, y], [out], a=1.7)
    assert out.tobytes() == (x.dtype.type(1.7) * x + y).tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_saxpy_may_write_over_either_input(device: KernelDevice, dtype: str) -> None:
    x, y = random_array((1001,), dtype, 1), random_array((1001,), dtype, 2)
    expected = x.dtype.type(-0.3) * x + y
    over_x, over_y = x.copy(), y.copy()
    device.run("saxpy", [over_x, y], [over_x], a=-0.3)
    device.run("saxpy", [x, over_y], [over_y], a=-0.3)
    assert over_x.tobytes() == over_y.tobytes() == expected.tobytes()
    device.run("saxpy", [x, x], [x], a=1.0)
    assert (x == over_x.dtype.type(2) * random_array((1001,), dtype, 1)).all()


@FEW
@given(n=st.integers(0, 3000), a=st.floats(-10, 10, width=32), seed=st.integers(0, 2**32 - 1))
def test_saxpy_of_any_length(device: KernelDevice, n: int, a: float, seed: int) -> None:
    x, y = random_array((n,), "f4", seed), random_array((n,), "f4", seed + 1)
    out = np.empty_like(x)
    device.run("saxpy", [x, y], [out], a=a)
    assert out.tobytes() == (np.float32(a) * x + y).tobytes()


@pytest.mark.parametrize(
    ("kernel", "inputs", "outputs", "scalars", "message"),
    [
        ("copy", [((3,), "f4")], [((4,), "f4")], {}, r"y has shape \(4,\), expected \(3,\)"),
        ("copy", [((3,), "f4")], [((3,), "i4")], {}, r"y has dtype i4, expected f4"),
        (
            "saxpy",
            [((3,), "f4"), ((2,), "f4")],
            [((3,), "f4")],
            {"a": 1.0},
            r"y has shape \(2,\), expected \(3,\)",
        ),
        ("saxpy", [((6,), "f4"), ((6,), "f4")], [((2, 3), "f4")], {"a": 1.0}, r"y_out has shape \(2, 3\)"),
        ("saxpy", [((3,), "f4"), ((3,), "f8")], [((3,), "f4")], {"a": 1.0}, r"y has dtype f8, expected f4"),
        (
            "saxpy",
            [((3,), "i4"), ((3,), "i4")],
            [((3,), "i4")],
            {"a": 1.0},
            r"x has dtype i4, expected one of f4, f8",
        ),
    ],
)
def test_operands_that_do_not_fit_are_named(
    device: KernelDevice,
    kernel: str,
    inputs: list[tuple[tuple[int, ...], str]],
    outputs: list[tuple[tuple[int, ...], str]],
    scalars: dict[str, float],
    message: str,
) -> None:
    arrays = [[np.zeros(shape, dtype) for shape, dtype in group] for group in (inputs, outputs)]
    with pytest.raises(LaunchError, match=message):
        device.run(kernel, *arrays, **scalars)
    assert all((array == 0).all() for array in arrays[1])
