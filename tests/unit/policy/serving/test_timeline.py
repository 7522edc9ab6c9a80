"""Units over time: where something fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polymux.policy.serving.timeline import Timeline

blocks = st.lists(
    st.tuples(st.integers(1, 10), st.integers(0, 50), st.integers(1, 20)), max_size=8
)  # units, start, length


def test_something_fits_at_the_first_time_at_which_enough_is_free_for_long_enough():
    timeline = Timeline(100, 0)
    timeline.add(60, 0, 10)
    timeline.add(80, 15, 20)
    assert timeline.earliest(40, 15, 0) == 0 or timeline.fits(20, 0, 15)
    assert timeline.earliest(40, 5, 0) == 0
    assert timeline.earliest(41, 5, 0) == 10
    assert timeline.earliest(41, 6, 0) == 20
    assert timeline.earliest(41, 6, 0, until_ns=25) is None
    assert timeline.earliest(101, 1, 0) is None


@given(blocks, st.integers(1, 10), st.integers(1, 20), st.integers(0, 60))
def test_the_earliest_time_is_that_of_trying_every_time(planned, units, length, start):
    timeline = Timeline(20, 0)
    used = [0] * 400
    for block_units, begin, duration in planned:
        if timeline.fits(block_units, begin, begin + duration):
            timeline.add(block_units, begin, begin + duration)
            for at in range(begin, begin + duration):
                used[at] += block_units
    tried = next(
        at for at in range(start, 400) if all(used[t] + units <= 20 for t in range(at, min(400, at + length)))
    )
    assert timeline.earliest(units, length, start) == tried
    assert timeline.fits(units, start, start + length) == (tried == start)
    assert timeline.earliest(units, length, start, tried + length - 1) is None


def test_what_is_taken_away_again_leaves_room():
    timeline = Timeline(10, 0)
    copy = timeline.copy()
    timeline.add(10, 2, 4)
    assert not timeline.fits(1, 0, 3)
    timeline.add(-10, 2, 4)
    assert timeline.fits(10, 0, 9)
    assert copy.changes() == []


@given(blocks, st.integers(1, 10), st.integers(1, 20), st.integers(0, 60), st.integers(0, 120))
def test_what_is_put_somewhere_is_in_use_where_the_earliest_time_is(planned, units, length, start, until):
    put, added = Timeline(20, 0), Timeline(20, 0)
    for block_units, begin, duration in planned:
        found = added.earliest(block_units, duration, begin)
        assert put.put(block_units, duration, begin) == found
        added.add(block_units, found, found + duration)
    earliest = added.earliest(units, length, start, until)
    assert put.put(units, length, start, until) == earliest
    if earliest is not None:
        added.add(units, earliest, earliest + length)
    assert put.changes() == added.changes()
    assert all(
        put.earliest(some, 1, at) == added.earliest(some, 1, at)
        for some in range(1, 21)
        for at in range(0, 200, 3)
    )
