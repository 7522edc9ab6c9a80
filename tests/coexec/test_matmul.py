"""The matrix product on all devices together is NumPy's, whatever the arrays look like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymux import matmul
from polymux.coexec import Session, error_bound
from polymux.core.errors import InvalidRequest, SegmentFull

SIZES = st.integers(1, 90)


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def check(got: Any, a: Any, b: Any, precision: str = "fp32") -> None:
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    bound = error_bound(precision, a.shape[-1]) * (
        np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    )
    assert got.shape == exact.shape
    assert (np.abs(got - exact) <= bound + 1e-30).all()


@given(SIZES, SIZES, SIZES, st.sampled_from([np.float32, np.float64]), st.integers(0, 1000))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_shapes_agree_with_numpy(
    session: Session, m: int, k: int, n: int, dtype: Any, seed: int
) -> None:
    a, b = random(m, k, dtype=dtype, seed=seed), random(k, n, dtype=dtype, seed=seed + 1)
    result = matmul(a, b, session=session)
    assert result.dtype == dtype
    check(result, a, b, "fp32" if dtype == np.float32 else "fp64")


def test_a_large_product_is_split_and_right(session: Session) -> None:
    a, b = random(700, 300), random(300, 500)
    for _ in range(4):
        check(matmul(a, b, session=session), a, b)
    assert session.last is not None
    assert sum(run.chunk.count for run in session.last.runs) == session.last.planned.plan.problem.extent


@pytest.mark.parametrize(
    ("a", "b"), [((0, 5), (5, 3)), ((4, 0), (0, 3)), ((4, 5), (5, 0)), ((1, 7), (7, 1)), ((1, 1), (1, 1))]
)
def test_empty_and_single_matrices(session: Session, a: Any, b: Any) -> None:
    x, y = random(*a), random(*b)
    np.testing.assert_allclose(matmul(x, y, session=session), x @ y, rtol=1e-5)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5,), (5,)),
        ((5,), (5, 3)),
        ((4, 5), (5,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((6, 1, 3, 4), (2, 4, 5)),
    ],
)
def test_vectors_and_stacks_are_as_in_numpy(session: Session, a: Any, b: Any) -> None:
    x, y = random(*a), random(*b)
    result = matmul(x, y, session=session)
    assert np.shape(result) == (x @ y).shape
    np.testing.assert_allclose(result, x @ y, rtol=1e-4, atol=1e-5)


def test_strides_of_every_kind(session: Session) -> None:
    a, b = random(80, 60), random(60, 70)
    for x, y in (
        (a[::-1], b[:, ::-1]),
        (a[::2, ::3], b[::3]),
        (a.T.copy().T, np.asfortranarray(b)),
        (np.broadcast_to(a[:1], a.shape), b),
    ):
        check(matmul(x, y, session=session), x, y)


def test_mixed_and_other_dtypes_are_numpys(session: Session) -> None:
    a, b = random(40, 30), random(30, 20, dtype=np.float64)
    result = matmul(a, b, session=session)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, a @ b, rtol=1e-12)
    for dtype in (np.int8, np.int32, np.uint16, np.bool_, np.complex64, np.float16):
        x, y = (random(9, 8) * 20).astype(dtype), (random(8, 7) * 20).astype(dtype)
        product = matmul(x, y, session=session)
        assert product.dtype == (x @ y).dtype
        np.testing.assert_array_equal(product, x @ y)
    assert matmul(np.ones((3, 4), np.int64), random(4, 5), session=session).dtype == np.float64


def test_nan_and_infinity_arrive_as_in_numpy(session: Session) -> None:
    a, b = random(64, 48), random(48, 56)
    a[3, 5], a[60, 1], b[2, 7], b[0, 50] = np.nan, np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(matmul(a, b, session=session), a @ b, rtol=1e-3, atol=1e-4)


def test_a_given_out_gets_the_result_even_when_it_is_an_input(session: Session) -> None:
    a, b = random(50, 50), random(50, 50)
    out = np.empty((50, 50), np.float32)
    assert matmul(a, b, out, session=session) is out
    check(out, a, b)
    placed = session.array(a)
    exact = a @ b
    assert matmul(placed, b, placed, session=session) is placed
    np.testing.assert_allclose(placed, exact, rtol=1e-3, atol=1e-4)
    stacked = np.empty((2, 3, 5), np.float32)
    x, y = random(2, 3, 4), random(4, 5)
    assert matmul(x, y, stacked, session=session) is stacked
    np.testing.assert_allclose(stacked, x @ y, rtol=1e-4, atol=1e-5)


def test_arrays_in_shared_memory_are_used_where_they_are(session: Session) -> None:
    a, b = session.array(random(30, 20)), session.array(random(20, 10))
    assert session.array(a) is a
    out = session.empty((30, 10))
    assert matmul(a, b, out, session=session) is out
    chained = matmul(matmul(a, b, session=session), session.array(random(10, 4)), session=session)
    assert chained.shape == (30, 4)
    check(matmul(a[3:9], b, session=session), np.asarray(a[3:9]), np.asarray(b))


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ((3, 4), (5, 6), r"\(3, 4\) and \(5, 6\)"),
        ((3,), (4,), r"\(3,\) and \(4,\)"),
        ((), (4, 4), r"\(\) and \(4, 4\)"),
        ((2, 3, 4), (3, 4, 5), "stacks do not fit"),
    ],
)
def test_shapes_that_do_not_fit_are_named(session: Session, a: Any, b: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        matmul(np.ones(a, np.float32), np.ones(b, np.float32), session=session)


def test_bad_out_objective_and_devices_are_named(session: Session) -> None:
    a = random(8, 8)
    with pytest.raises(InvalidRequest, match=r"out is float64\[8, 8\]; give float32"):
        matmul(a, a, np.empty((8, 8)), session=session)
    with pytest.raises(InvalidRequest, match="objective"):
        matmul(a, a, objective="speed", session=session)
    with pytest.raises(InvalidRequest, match=r"gpu:7.*cpu:0/0/coexec_gemm"):
        matmul(a, a, devices=["gpu:7"], session=session)


def test_arrays_larger_than_shared_memory_are_refused_with_sizes(session: Session) -> None:
    wide = np.broadcast_to(np.float32(1), (1 << 22, 1 << 16))
    with pytest.raises(SegmentFull):
        matmul(wide, random(1 << 16, 2), session=session)
    a = random(20, 20)
    check(matmul(a, a, session=session), a, a)
