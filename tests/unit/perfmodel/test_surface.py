"""Latency surfaces: a table, and the flat one of the D-STACK paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.perfmodel.surface import TableSurface

TABLE = TableSurface((10, 50, 100), (1, 4), ((100, 160), (60, 100), (40, 60)))
FLAT = FlatKneeSurface(40, ((1, 100), (4, 220)))


@pytest.mark.parametrize(
    ("units", "batch", "time_ns"),
    [(10, 1, 100), (50, 4, 100), (30, 1, 80), (100, 2, 47), (5, 1, 200), (200, 4, 60), (100, 8, 120)],
)
def test_a_table_is_linear_inside_and_simple_beyond(units, batch, time_ns):
    assert TABLE.latency_ns(units, batch) == time_ns


@pytest.mark.parametrize(
    ("units", "batch", "time_ns"),
    [(40, 1, 100), (100, 1, 100), (20, 1, 200), (40, 2, 140), (10, 4, 880), (40, 8, 440)],
)
def test_a_flat_surface_grows_with_the_inverse_of_the_share_below_its_knee(units, batch, time_ns):
    assert FLAT.latency_ns(units, batch) == time_ns


def test_a_flat_surface_takes_as_long_for_less_than_its_smallest_batch():
    assert FlatKneeSurface(40, ((16, 100),)).latency_ns(40, 1) == 100


def test_the_largest_batch_is_the_tables_or_the_limit():
    assert (TABLE.max_batch, FLAT.max_batch) == (4, 4)
    assert TableSurface((1,), (1,), ((5,),), 8).max_batch == 8
    assert FlatKneeSurface(1, ((1, 5),), 8).max_batch == 8


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 20), st.integers(1, 20))
def test_more_units_never_take_longer_and_more_items_never_less(units, more_units, batch, more_items):
    for surface in (TABLE, FLAT):
        here = surface.latency_ns(units, batch)
        assert here >= 1
        assert surface.latency_ns(units + more_units, batch) <= here
        assert surface.latency_ns(units, batch + more_items) >= here


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: FlatKneeSurface(0, ((1, 5),)), "a knee at 0 units"),
        (lambda: FlatKneeSurface(1, ()), "0 times"),
        (lambda: FlatKneeSurface(1, ((1, 5),), -1), "limit -1"),
        (lambda: FlatKneeSurface(1, ((2, 5), (1, 6))), "the batches ascending"),
        (lambda: FlatKneeSurface(1, ((1, 5), (2, 4))), "the times not falling"),
        (lambda: FlatKneeSurface(1, ((0, 5),)), "positive numbers"),
        (lambda: FLAT.latency_ns(0, 1), "a batch of 1 on 0 units"),
        (lambda: TABLE.latency_ns(1, 0), "a batch of 0 on 1 units"),
        (lambda: TableSurface((2, 1), (1,), ((1,), (1,))), "units are"),
        (lambda: TableSurface((1,), (0,), ((1,),)), "batches are"),
        (lambda: TableSurface((1,), (1, 2), ((1,),)), "1 rows of 2 times"),
        (lambda: TableSurface((1,), (1,), ((0,),)), "below 1 ns"),
    ],
)
def test_a_surface_that_cannot_be_is_refused(make, complaint):
    with pytest.raises(InvalidRequest, match=complaint):
        make()
