"""Lower precision: who may compute for whom, and the bound of the error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.precision import PRECISIONS, allowed, error_bound


@pytest.mark.parametrize("data", PRECISIONS)
def test_without_leave_only_units_that_lose_nothing_compute(data):
    order = {"fp64": 0, "fp32": 1, "tf32": 2, "fp16": 3, "bf16": 3}
    for unit in PRECISIONS:
        assert allowed(unit, data) == (unit == data or order[unit] < order[data]) or (unit, data) == (
            "tf32",
            "bf16",
        )


def test_leave_for_one_is_leave_for_those_that_are_as_accurate_and_reach_as_far():
    assert allowed("bf16", "fp32", "bf16")
    assert allowed("tf32", "fp32", "bf16")
    assert not allowed("fp16", "fp32", "bf16")  # beyond 65,504 it would become infinite
    assert allowed("tf32", "fp32", "fp16")
    assert not allowed("bf16", "fp32", "fp16")
    assert not allowed("bf16", "fp32")


def as_bf16(values):
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


@given(seed=st.integers(0, 10_000), depth=st.sampled_from([1, 2, 17, 300]))
@settings(max_examples=40, deadline=None)
def test_rounded_products_stay_within_the_bound(seed, depth):
    rng = np.random.default_rng(seed)
    a = (rng.standard_normal((5, depth)) * 10.0 ** rng.integers(-5, 5, (5, depth))).astype(np.float32)
    b = rng.standard_normal((depth, 4)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    for name, x, y in (("fp32", a, b), ("bf16", as_bf16(a), as_bf16(b))):
        got = (x @ y).astype(np.float64)
        assert np.all(np.abs(got - exact) <= error_bound(name, depth) * size)
        if name == "bf16":
            assert np.all(np.abs(as_bf16(got) - exact) <= error_bound(name, depth) * size)


def test_the_bound_of_bf16_has_the_rounding_of_the_result_in_it():
    a, b = (
        np.array([[1 + odd / 256 + 2.0**-20]], np.float32) for odd in (15, 17)
    )  # rounded up, as is their product
    exact = float(a[0, 0]) * float(b[0, 0])
    relative = float(as_bf16(as_bf16(a) * as_bf16(b))[0, 0]) / exact - 1
    assert 2.5 * 2.0**-8 < relative <= error_bound("bf16", 1)


def test_the_bound_is_no_more_than_twice_what_rounding_can_do():
    a = np.array([[1 + 2.0**-8]], np.float32)  # half way between two numbers of bf16
    relative = abs(float(as_bf16(a)[0, 0] ** 2) / float(a[0, 0]) ** 2 - 1)
    assert error_bound("bf16", 1) / 2 < relative <= error_bound("bf16", 1)


def test_sums_too_long_for_a_bound_have_none():
    assert error_bound("fp16", 10_000_000, "fp16") == float("inf")


@pytest.mark.parametrize(
    "bad", [lambda: error_bound("fp8", 1), lambda: error_bound("fp32", 0), lambda: allowed("x", "fp32")]
)
def test_unknown_precisions_and_empty_sums_are_refused(bad):
    with pytest.raises(InvalidRequest):
        bad()
