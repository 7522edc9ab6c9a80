"""dot and reduce."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymux.device.protocol import LaunchError
from polymux.kernel.builtin.reduce import Operation
from tests.contract.kernels.kernel_device import KernelDevice

SIZES = (0, 1, 2, 15, 16, 17, 1023, 16384, 16385, 100_003)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMPY = {Operation.SUM: np.sum, Operation.MIN: np.min, Operation.MAX: np.max}


def values(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype.startswith("i"):
        return random.integers(-1_000_000, 1_000_000, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", SIZES)
def test_dot_is_accurate_to_the_last_places(device: KernelDevice, n: int, dtype: str) -> None:
    x, y = values((n,), dtype, 1), values((n,), dtype, 2)
    r = np.full((), 99, dtype)
    device.run("dot", [x, y], [r])
    exact = np.sum(x.astype("f16") * y.astype("f16"))
    tolerance = np.finfo(dtype).eps * max(1.0, float(np.sum(np.abs(x * y)))) * (1 if dtype == "f4" else 8)
    assert abs(float(r) - float(exact)) <= tolerance


def test_dot_adds_over_all_dimensions(device: KernelDevice) -> None:
    x, y, r = values((3, 5, 7), "f8", 1), values((3, 5, 7), "f8", 2), np.zeros(1)
    device.run("dot", [x, y], [r])
    assert r[0] == pytest.approx(np.vdot(x, y), rel=1e-14)


def test_a_reduction_gives_the_same_bits_every_time(device: KernelDevice) -> None:
    x, y = values((300_001,), "f4", 1), values((300_001,), "f4", 2)
    results = [np.zeros((), "f4") for _ in range(3)]
    for r in results:
        device.run("dot", [x, y], [r])
    assert len({r.tobytes() for r in results}) == 1


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
@pytest.mark.parametrize("op", list(Operation))
@pytest.mark.parametrize("n", SIZES[1:])
def test_reduce_over_all_elements(device: KernelDevice, n: int, op: Operation, dtype: str) -> None:
    x, r = values((n,), dtype), np.zeros((), dtype)
    device.run("reduce", [x], [r], op=op)
    if dtype == "f4":
        assert r == pytest.approx(float(NUMPY[op](x.astype("f8"))), rel=1e-6)
    else:
        assert r == pytest.approx(NUMPY[op](x), rel=1e-12, abs=1e-10)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
@pytest.mark.parametrize("op", list(Operation))
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 300, 2), (40, 3, 70), (2, 17, 1)])
def test_reduce_along_an_axis(
    device: KernelDevice, shape: tuple[int, ...], axis: int, op: Operation, dtype: str
) -> None:
    x = values(shape, dtype)
    expected = NUMPY[op](x, axis=axis)
    r = np.zeros(expected.shape, dtype)
    device.run("reduce", [x], [r], op=op, axis=axis)
    np.testing.assert_allclose(
        r, expected, rtol=1e-5 if dtype == "f4" else 1e-12, atol=1e-5 if dtype == "f4" else 0
    )


@FEW
@given(
    shape=st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple),
    axis=st.integers(-4, 3),
    op=st.sampled_from(list(Operation)),
    seed=st.integers(0, 1000),
)
def test_reduce_of_any_shape(
    device: KernelDevice, shape: tuple[int, ...], axis: int, op: Operation, seed: int
) -> None:
    axis = axis % len(shape)
    x = values(shape, "i8", seed)
    expected = np.asarray(NUMPY[op](x, axis=axis))
    r = np.zeros(expected.shape, "i8")
    device.run("reduce", [x], [r], op=op, axis=axis)
    assert (r == expected).all()


def test_sums_of_integers_wrap(device: KernelDevice) -> None:
    x, r = np.full(3, 2**31 - 1, "i4"), np.zeros((), "i4")
    device.run("reduce", [x], [r])
    assert r == np.sum(x, dtype="i4")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("at", [0, 1, 31, 499, 998])
def test_a_nan_is_the_minimum_the_maximum_and_the_sum(device: KernelDevice, at: int, dtype: str) -> None:
    x = values((999,), dtype)
    x[at] = np.nan
    for op in Operation:
        r, rows = np.zeros((), dtype), np.zeros(3, dtype)
        device.run("reduce", [x], [r], op=op)
        device.run("reduce", [x.reshape(3, 333)], [rows], op=op, axis=1)
        assert np.isnan(r)
        assert (np.isnan(rows) == np.isnan(x.reshape(3, 333)).any(axis=1)).all()


def test_the_sum_of_nothing_is_zero_and_its_minimum_an_error(device: KernelDevice) -> None:
    nothing, r = np.zeros((4, 0), "f4"), np.ones(4, "f4")
    device.run("reduce", [nothing], [r], axis=1)
    assert (r == 0).all()
    with pytest.raises(LaunchError, match=r"x has shape \(4, 0\): no elements have no minimum"):
        device.run("reduce", [nothing], [r], op=1, axis=1)
    device.run("reduce", [np.zeros((0, 4), "f4")], [np.zeros(0, "f4")], op=1, axis=1)


@pytest.mark.parametrize(
    ("shape", "r_shape", "scalars", "message"),
    [
        ((4, 5), (5,), {"axis": 1}, r"r has shape \(5,\), expected \(4,\)"),
        ((4, 5), (2, 2), {}, r"r has shape \(2, 2\), expected \(4,\)"),
        ((4, 5), (5,), {"axis": 2}, r"axis is 2, expected -2 to 1"),
        ((), (3,), {}, r"axis is -1"),
        ((4, 5), (), {"op": 3}, r"op is 3, expected 0 \(sum\)"),
    ],
)
def test_reductions_that_do_not_fit_are_named(
    device: KernelDevice,
    shape: tuple[int, ...],
    r_shape: tuple[int, ...],
    scalars: dict[str, int],
    message: str,
) -> None:
    with pytest.raises(LaunchError, match=message):
        device.run("reduce", [np.zeros(shape, "f4")], [np.zeros(r_shape, "f4")], **scalars)


def test_dot_refuses_vectors_of_different_length(device: KernelDevice) -> None:
    with pytest.raises(LaunchError, match=r"y has shape \(3,\), expected \(4,\)"):
        device.run("dot", [np.zeros(4, "f4"), np.zeros(3, "f4")], [np.zeros((), "f4")])
    with pytest.raises(LaunchError, match=r"r has shape \(2,\), expected \(\) or \(1,\)"):
        device.run("dot", [np.zeros(4, "f4"), np.zeros(4, "f4")], [np.zeros(2, "f4")])
    x = np.zeros(1, "f4")
    with pytest.raises(LaunchError, match="r must not share memory with x"):
        device.run("dot", [x, np.zeros(1, "f4")], [x])
