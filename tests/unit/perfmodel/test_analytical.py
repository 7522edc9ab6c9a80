"""D-STACK's analytical model of a DNN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.analytical import (
    AnalyticalDnn,
    fitted_example_times_ns,
    knee_of_many_kernels,
    knee_of_times,
    merit_of_times,
)
from polymux.perfmodel.knee import derivative_knee

UNITS = range(1, 81)
PAPER = {20: 9, 40: 24, 60: 31}


def _example(first_operations, **more):
    return AnalyticalDnn(first_operations, 50, 40, 10, **more)


@pytest.mark.parametrize(("first_operations", "knee"), [(20, 10), (40, 20), (60, 30)])
def test_the_plain_equations_have_their_knees_at_half_of_the_parallel_operations(first_operations, knee):
    assert _example(first_operations).knee(80) == knee


@pytest.mark.parametrize(("first_operations", "knee"), PAPER.items())
def test_the_papers_knees_are_within_four_units_and_three_percent_of_the_plain_ones(first_operations, knee):
    model = _example(first_operations)
    assert abs(model.knee(80) - knee) <= 4
    assert merit_of_times(model.times_ns(UNITS, 1))[knee - 1] >= 0.97


@pytest.mark.parametrize(("first_operations", "knee"), PAPER.items())
def test_the_fitted_variant_has_the_papers_knees_exactly(first_operations, knee):
    assert knee_of_times(fitted_example_times_ns(first_operations, UNITS)) == knee


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.25, 1, 2, 4])
@pytest.mark.parametrize("first_operations", range(20, 101, 10))
def test_the_closed_form_is_within_two_units_of_the_equations(first_operations, ratio):
    model = AnalyticalDnn(first_operations, 50, 40, 40 * ratio)
    assert abs(knee_of_many_kernels(first_operations, ratio) - model.knee(120)) <= 2


def test_the_closed_form_is_exact_for_very_many_kernels():
    model = AnalyticalDnn(300, 5000, 40, 10)
    assert model.knee(300) == pytest.approx(knee_of_many_kernels(300, 0.25), abs=1)
    assert knee_of_many_kernels(100, 0) == pytest.approx(100 / 3**0.5)


def test_equations_one_to_five_by_hand():
    model = AnalyticalDnn(4, 2, 10, 3, (1, 5), (80, 160), 2e9)
    assert list(model.operations(1)) == [4, 2]
    assert list(model.operations(3)) == [12, 6]
    # Three units: 40/3 and 20/2 of work, starts of 3, data of 80 and 160 bytes over 3 * 2 bytes/ns.
    expected = (3 + 80 / 6 + 40 / 3) + 5 * (3 + 160 / 6 + 10)
    assert model.times_ns([3], 1) == pytest.approx([expected])
    assert model.latency_ns(3, 1) == round(expected)


def test_half_an_operation_takes_half_of_the_time_of_one_however_many_units_there_are():
    assert AnalyticalDnn(1, 2, 10, 0).times_ns([8], 1) == pytest.approx([10 + 5])


def test_a_larger_batch_and_a_smaller_serial_part_move_the_knee_up():
    knees = [_example(20).knee(500, batch) for batch in (1, 2, 4, 8)]
    assert knees == sorted(set(knees))
    ratios = [knee_of_many_kernels(100, r) for r in (0.01, 0.25, 1, 4)]
    assert ratios == sorted(set(ratios), reverse=True)


def test_it_is_a_latency_surface_whose_knee_is_that_of_any_surface():
    model = AnalyticalDnn(40, 50, 40_000, 10_000, max_batch=8)
    assert derivative_knee(model, 1, tuple(UNITS)) == model.knee(80) == 20


@given(st.integers(1, 300), st.integers(1, 100), st.floats(0.1, 100), st.floats(0, 100), st.integers(1, 16))
def test_more_units_never_take_longer_and_a_larger_batch_never_less(first, kernels, operation, start, batch):
    model = AnalyticalDnn(first, kernels, operation, start, (), (100.0,) * kernels, 1e9, 32)
    here, larger = model.times_ns(UNITS, batch), model.times_ns(UNITS, batch + 1)
    assert np.all(np.diff(here) <= 1e-9 * here[1:])
    assert np.all(larger >= here * (1 - 1e-9))


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: AnalyticalDnn(0, 1, 1, 1), "parallel_operations is 0"),
        (lambda: AnalyticalDnn(1, 0, 1, 1), "kernels is 0"),
        (lambda: AnalyticalDnn(1, 1, float("nan"), 1), "operation_ns is nan"),
        (lambda: AnalyticalDnn(1, 1, 0, 1), "operation_ns is 0"),
        (lambda: AnalyticalDnn(1, 1, 1, -1), "start_ns is -1"),
        (lambda: AnalyticalDnn(1, 2, 1, 1, (1,)), "repetitions has 1 entries for 2 kernels"),
        (lambda: AnalyticalDnn(1, 1, 1, 1, (), (-1,)), "nbytes has 1 entries for 1 kernels, the least -1"),
        (lambda: AnalyticalDnn(1, 1, 1, 1, unit_bandwidth_bytes_per_s=0), "unit_bandwidth_bytes_per_s is 0"),
        (lambda: _example(20).times_ns([], 1), "a batch of 1 on"),
        (lambda: _example(20).latency_ns(0, 1), "a batch of 1 on"),
        (lambda: _example(20).latency_ns(1, 0), "a batch of 0 on"),
        (lambda: knee_of_many_kernels(0, 1), "knee for 0 operations"),
        (lambda: knee_of_many_kernels(1, -1), "r = -1"),
    ],
)
def test_a_model_that_cannot_be_is_refused(call, complaint):
    with pytest.raises(InvalidRequest, match=complaint):
        call()
