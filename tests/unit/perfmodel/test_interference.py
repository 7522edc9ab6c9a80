"""Interference between models on one device: fitted, predicted, and its error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.interference import NO_INTERFERENCE, CoLocation, Interference, fit_interference

SENSITIVITY = {"a": 0.4, "b": 0.1, "c": 0.9, "d": 0.0}
PRESSURE = {"a": 0.5, "b": 2.0, "c": 1.0, "d": 0.5}
TRUTH = Interference(SENSITIVITY, PRESSURE)


def _pairs(noise=0.0, skip=()):
    rng = np.random.default_rng(7)
    return [
        CoLocation(one, ((other, 0.5),), TRUTH.slowdown(one, [(other, 0.5)]) * (1 + rng.normal(0, noise)))
        for one in SENSITIVITY
        for other in PRESSURE
        if (one, other) not in skip
    ]


def test_without_measurements_there_is_no_interference():
    assert NO_INTERFERENCE.slowdown("a", [("b", 0.5)]) == 1
    assert NO_INTERFERENCE.largest_error is None


def test_pairs_tell_what_happens_with_several_neighbours_and_other_shares():
    fitted = fit_interference(_pairs())
    for model in SENSITIVITY:
        neighbours = [("b", 0.2), ("c", 0.3), ("a", 0.1)]
        assert fitted.slowdown(model, neighbours) == pytest.approx(
            TRUTH.slowdown(model, neighbours), abs=0.005
        )
    assert fitted.largest_error < 0.01


def test_pairs_that_were_not_measured_are_predicted_from_the_others():
    fitted = fit_interference(_pairs(skip={("a", "b"), ("c", "c"), ("b", "a")}))
    for one, other in (("a", "b"), ("c", "c"), ("b", "a")):
        assert fitted.slowdown(one, [(other, 0.5)]) == pytest.approx(
            TRUTH.slowdown(one, [(other, 0.5)]), abs=0.01
        )


def test_the_reported_error_grows_with_the_noise():
    errors = [fit_interference(_pairs(noise)).largest_error for noise in (0.0, 0.03, 0.1)]
    assert errors == sorted(errors)
    assert errors[1] == pytest.approx(0.06, abs=0.05)


def test_a_model_that_was_never_measured_is_taken_as_the_mean_of_the_others():
    fitted = fit_interference(_pairs())
    mean = sum(fitted.sensitivity.values()) / 4
    assert fitted.slowdown("new", [("b", 0.5)]) == pytest.approx(1 + mean * fitted.pressure["b"] * 0.5)
    assert fitted.slowdown("b", []) == 1


def test_a_pair_that_was_measured_is_met_even_where_two_numbers_a_model_cannot_tell_it():
    slow = {("a", "a"): 2.0, ("a", "b"): 1.1, ("b", "a"): 1.1, ("b", "b"): 2.0}  # like disturbs like
    fitted = fit_interference([CoLocation(one, ((other, 0.5),), by) for (one, other), by in slow.items()])
    for (one, other), by in slow.items():
        assert fitted.slowdown(one, [(other, 0.5)]) == pytest.approx(by)
    assert fitted.slowdown("a", [("a", 0.2), ("b", 0.2)]) == pytest.approx(1 + 0.4 + 0.04)
    assert fitted.largest_error > 0.1  # what would be said had a pair not been measured
    twice = fit_interference([CoLocation("a", (("b", 0.5),), by) for by in (1.2, 1.4)])
    assert twice.slowdown("a", [("b", 0.5)]) == pytest.approx(1.3)


def test_a_single_pair_is_met():
    fitted = fit_interference([CoLocation("a", (("b", 0.5),), 1.3)])
    assert fitted.slowdown("a", [("b", 0.5)]) == pytest.approx(1.3, abs=0.01)
    assert fitted.left_out == ()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.builds(
            CoLocation,
            st.sampled_from("abc"),
            st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0.01, 1)), min_size=1, max_size=3).map(
                tuple
            ),
            st.floats(0.5, 20),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_was_measured_nothing_is_predicted_to_run_faster_beside_others(observations):
    fitted = fit_interference(observations)
    for observation in observations:
        assert 1 <= fitted.slowdown(observation.model, observation.neighbours) < 1e6
    assert min(fitted.sensitivity.values()) >= 0
    assert min(fitted.pressure.values()) >= 0


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: fit_interference([]), "0 observations without neighbours"),
        (lambda: fit_interference([CoLocation("a", (), 1.0)]), "1 observations without neighbours"),
        (lambda: Interference({"a": -1}), "sensitivity is {'a': -1}"),
        (lambda: Interference({"a": 1}, pairs={("a", "b"): -2}), "pairs is"),
        (lambda: Interference({"a": 1}, {"a": float("nan")}), "pressure is {'a': nan}"),
        (lambda: CoLocation("a", (("b", 0.5),), 0), "slowdown 0"),
        (lambda: CoLocation("a", (("b", 1.5),), 1), "co-location of a"),
    ],
)
def test_observations_that_say_nothing_are_refused(call, complaint):
    with pytest.raises(InvalidRequest, match=complaint):
        call()
