"""Surfaces fitted to measured points, and the error that they report."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.perfmodel import tables
from polymux.perfmodel.measurement import Measurement
from polymux.perfmodel.surface_fit import fit_surface

EVERY_LOG = [(name, log) for name, logs in tables.measured("v100").items() for log in logs]
SHARES = tuple(range(10, 101, 10))


def _by_law(law, units, batches):
    c0, c1, c2, c3 = law
    return [
        Measurement(share, batch, round(c0 + c1 * batch + (c2 + c3 * batch) / share))
        for share, batch in product(units, batches)
    ]


def _assert_monotone(surface):
    for row in surface.table_ns:
        assert list(row) == sorted(row)
    for column in zip(*surface.table_ns, strict=True):
        assert list(column) == sorted(column, reverse=True)


def test_points_of_the_law_itself_are_met_everywhere_even_where_none_was_measured():
    law = (2e6, 3e5, 5e7, 4e7)
    fitted = fit_surface(_by_law(law, (10, 40, 100), (1, 4, 16)), SHARES, (1, 2, 8, 16, 32), 32)
    assert fitted.law_ns == pytest.approx(law, rel=1e-4)
    assert fitted.largest_error == pytest.approx(0, abs=1e-5)
    for point in _by_law(law, SHARES, (1, 2, 8, 16, 32)):
        assert fitted.surface.latency_ns(point.units, point.batch) == pytest.approx(
            point.latency_ns, rel=1e-4
        )
    assert fitted.surface.max_batch == 32


@pytest.mark.parametrize(("name", "log"), EVERY_LOG)
def test_the_v100_logs_are_met_within_their_noise_and_predicted_within_a_few_percent(name, log):
    points = tables.measurements("v100", name, log)
    fitted = fit_surface(points)
    _assert_monotone(fitted.surface)
    met = [fitted.surface.latency_ns(point.units, point.batch) / point.latency_ns - 1 for point in points]
    assert max(map(abs, met)) < 0.02
    if len(points) >= 60:
        assert fitted.median_error < 0.03
        assert fitted.largest_error < 0.15
        assert fitted.inner_error <= fitted.largest_error


def test_the_reported_error_is_that_of_predicting_a_point_from_all_others():
    points = tables.measurements("v100", "mobilenet")
    fitted = fit_surface(points)
    share, batch, error = fitted.left_out[17]
    (left_out,) = [point for point in points if (point.units, point.batch) == (share, batch)]
    others = [point for point in points if point is not left_out]
    predicted = fit_surface(others, sorted({p.units for p in points}), sorted({p.batch for p in points}))
    assert predicted.surface.latency_ns(share, batch) == pytest.approx(
        left_out.latency_ns * (1 + error), rel=1e-3
    )


def test_the_error_grows_with_the_noise_of_the_measurement():
    rng = np.random.default_rng(4)
    clean = _by_law((2e6, 3e5, 5e7, 4e7), SHARES, (1, 2, 4, 8, 16))
    errors = []
    for noise in (0.0, 0.02, 0.1):
        factors = np.exp(rng.normal(0, noise, len(clean)))
        noisy = [
            Measurement(p.units, p.batch, round(p.latency_ns * f))
            for p, f in zip(clean, factors, strict=True)
        ]
        fitted = fit_surface(noisy)
        _assert_monotone(fitted.surface)
        errors.append(fitted.median_error)
    assert errors[0] < 1e-5 < errors[1] < errors[2]
    assert errors[1] == pytest.approx(0.02, rel=0.7)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            Measurement, st.integers(1, 100), st.sampled_from([1, 2, 4, 8, 16]), st.integers(1000, 10**8)
        ),
        min_size=1,
        max_size=14,
    )
)
def test_whatever_was_measured_the_surface_never_rises_with_the_share_or_falls_with_the_batch(points):
    fitted = fit_surface(points, (1, 7, 50, 100), (1, 3, 16, 64))
    _assert_monotone(fitted.surface)
    distinct = {(point.units, point.batch) for point in points}
    assert len(fitted.left_out) == (len(distinct) if len(distinct) >= 3 else 0)
    assert min(fitted.law_ns) >= 0


def test_a_point_that_breaks_the_order_is_moved_to_the_middle():
    points = [Measurement(10, 1, 100_000), Measurement(20, 1, 81_000), Measurement(30, 1, 100_000)]
    surface = fit_surface(points).surface
    assert [surface.latency_ns(share, 1) for share in (10, 20, 30)] == [100_000, 90_000, 90_000]


def test_repeated_points_count_as_their_geometric_mean():
    points = [Measurement(10, 1, 40_000), Measurement(10, 1, 90_000)]
    assert fit_surface(points).surface.latency_ns(10, 1) == 60_000


def test_a_single_point_makes_a_surface_without_an_error():
    fitted = fit_surface([Measurement(2, 1, 5000)])
    assert fitted.surface.latency_ns(2, 1) == 5000
    assert (fitted.median_error, fitted.largest_error, fitted.inner_error) == (None, None, None)


def test_without_points_or_with_axes_that_do_not_ascend_there_is_no_surface():
    with pytest.raises(InvalidRequest, match="no measured points"):
        fit_surface([])
    with pytest.raises(InvalidRequest, match="units are"):
        fit_surface([Measurement(2, 1, 5000)], (2, 1))
