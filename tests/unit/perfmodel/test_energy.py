"""Power and energy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.perfmodel import tables
from polymux.perfmodel.energy import PowerModel, counted_energy_j, fit_power

SECOND = 1_000_000_000


def test_power_rises_from_idle_to_busy_with_the_units_that_are_used():
    power = PowerModel(40, 300)
    assert [power.power_w(part) for part in (0, 0.5, 1)] == [40, 170, 300]
    assert power.energy_j(2 * SECOND, 0.5) == pytest.approx(340)


def test_the_power_of_a_kind_of_device_is_that_of_its_data_sheet():
    assert PowerModel.of(tables.device("v100")).power_w(1) == 300
    assert PowerModel.of(tables.device("t4")).power_w(1) == 70


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, SECOND)), max_size=8))
def test_the_energy_of_batches_and_idling_adds_up_to_that_of_the_device(batches):
    power, whole = PowerModel(40, 300), 10 * SECOND
    mean = sum(units * time for units, time in batches) / (100 * whole)
    added = sum(power.batch_energy_j(time, units, 100) for units, time in batches)
    assert power.energy_j(whole, 0) + added == pytest.approx(power.energy_j(whole, mean))


def test_a_model_is_fitted_to_samples_and_tells_its_error():
    exact = fit_power([(0, 50), (0.5, 150), (1, 250)])
    assert (exact.power.idle_w, exact.power.busy_w) == (pytest.approx(50), pytest.approx(250))
    assert exact.largest_error_w == pytest.approx(0, abs=1e-9)
    assert fit_power([(0, 50), (0.5, 180), (1, 250)]).largest_error_w > 10


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1000)), max_size=10))
def test_whatever_the_samples_the_fitted_power_is_one_that_can_be(samples):
    parts = [part for part, _ in samples] or [0]
    if max(parts) - min(parts) < 0.01:
        with pytest.raises(InvalidRequest):
            fit_power(samples)
    else:
        power = fit_power(samples).power
        assert 0 <= power.idle_w <= power.busy_w


def test_a_falling_power_is_constant_and_a_steep_one_starts_at_nothing():
    assert fit_power([(0, 100), (1, 50)]).power == PowerModel(75, 75)
    assert fit_power([(0.5, 10), (1, 100)]).power.idle_w == 0


def test_a_counter_may_wrap_around_once():
    assert counted_energy_j(10, 1_000_010, 5_000_000) == pytest.approx(1)
    assert counted_energy_j(4_999_999, 1, 5_000_000) == pytest.approx(3e-6)
    assert counted_energy_j(0, 2, 10, 1e-3) == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: PowerModel(5, 4), "idle 5 W, busy 4 W"),
        (lambda: PowerModel(-1, 4), "idle -1 W"),
        (lambda: PowerModel(0, float("inf")), "busy inf W"),
        (lambda: PowerModel(0, 1).power_w(1.1), "utilisation of 1.1"),
        (lambda: PowerModel(0, 1).batch_energy_j(1, 101, 100), "utilisation of 1.01"),
        (lambda: fit_power([]), "the 0 samples"),
        (lambda: fit_power([(0.5, 1), (0.5, 2)]), "utilisations of 0.5 to 0.5"),
        (lambda: fit_power([(0, 1), (1.5, 2)]), "give utilisations of 0 to 1"),
        (lambda: fit_power([(0, -1), (1, 2)]), "powers of 0 W or more"),
        (lambda: fit_power([(0, float("nan")), (1, 2)]), "powers of 0 W or more"),
        (lambda: counted_energy_j(11, 2, 10), "from 11 to 2"),
    ],
)
def test_power_and_counters_that_cannot_be_are_refused(call, complaint):
    with pytest.raises(InvalidRequest, match=complaint):
        call()
