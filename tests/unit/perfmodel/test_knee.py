"""The three definitions of a knee."""

from __future__ import annotations

import pytest

from polymux.core.errors import InvalidRequest
from polymux.perfmodel import tables
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.perfmodel.knee import KNEES, chord_knee, derivative_knee, tolerance_knee
from polymux.perfmodel.surface import TableSurface

SHARES = tuple(range(10, 101, 10))


@pytest.mark.parametrize("definition", [derivative_knee, tolerance_knee])
@pytest.mark.parametrize("knee", SHARES)
def test_the_knee_of_a_flat_surface_is_found(definition, knee):
    assert definition(FlatKneeSurface(knee, ((1, 1_000_000),)), 1, SHARES) == knee


@pytest.mark.parametrize("knee", SHARES)
def test_the_chord_sees_the_bend_of_the_inverse_rather_than_a_late_knee(knee):
    assert chord_knee(FlatKneeSurface(knee, ((1, 1_000_000),)), 1, SHARES) == min(knee, 30)


@pytest.mark.parametrize("definition", KNEES.values(), ids=KNEES)
def test_where_more_brings_nothing_the_smallest_share_is_the_knee(definition):
    assert definition(FlatKneeSurface(1, ((1, 1000),)), 1, SHARES) == 10
    assert definition(FlatKneeSurface(1, ((1, 1000),)), 1, (7,)) == 7


def test_the_knee_by_tolerance_is_the_first_share_that_is_near_enough():
    surface = TableSurface((10, 20, 40, 100), (1,), ((500,), (300,), (220,), (200,)))
    assert tolerance_knee(surface, 1, (10, 20, 40, 100)) == 40
    assert tolerance_knee(surface, 1, (10, 20, 40, 100), 0.5) == 20
    assert tolerance_knee(surface, 1, (10, 20, 40, 100), 0.0) == 100


def test_the_chord_is_furthest_from_the_curve_where_it_bends():
    surface = TableSurface((10, 20, 40, 100), (1,), ((500,), (300,), (220,), (200,)))
    assert chord_knee(surface, 1, (10, 20, 40, 100)) == 40


def test_perfect_scaling_has_its_derivative_knee_at_the_whole_device():
    surface = TableSurface(SHARES, (1,), tuple((100_000 // share,) for share in SHARES))
    assert derivative_knee(surface, 1, SHARES) == 100


def test_small_batches_of_measured_models_have_smaller_knees_than_large_ones():
    for name in ("mobilenet", "resnet50"):
        surface = tables.surface("v100", name)
        assert derivative_knee(surface, 1, SHARES) <= 20
        assert derivative_knee(surface, 32, SHARES) >= 70
        assert tolerance_knee(surface, 1, SHARES) < tolerance_knee(surface, 32, SHARES)


@pytest.mark.parametrize(
    ("shares", "tolerance"),
    [((), 0.1), ((20, 10), 0.1), ((0, 10), 0.1), ((10, 10), 0.1), ((10,), -1), ((10,), float("nan"))],
)
def test_a_knee_without_sensible_shares_or_tolerance_is_refused(shares, tolerance):
    with pytest.raises(InvalidRequest, match="knee (over|within)"):
        tolerance_knee(tables.surface("v100", "resnet50"), 1, shares, tolerance)
