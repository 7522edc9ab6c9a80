"""The calendar of free units agrees with counting them moment by moment."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.policy.serving.spacetime.calendar import Calendar

UNITS = 10
END = 40
reservations = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, UNITS)).map(
        lambda r: (r[0], min(END, r[0] + r[1]), r[2])
    ),
    max_size=8,
)


def counted(taken: list[tuple[int, int, int]]) -> list[int]:
    return [UNITS - sum(units for start, end, units in taken if start <= t < end) for t in range(END + 20)]


def filled(taken: list[tuple[int, int, int]]) -> Calendar:
    calendar = Calendar(UNITS)
    for start, end, units in taken:
        calendar.take(start, end, units)
    return calendar


@settings(max_examples=60)
@given(reservations, st.integers(0, 45), st.integers(1, 10), st.integers(1, UNITS))
def test_first_and_last_fit_are_those_found_by_trying_every_time(
    taken: list[tuple[int, int, int]], start: int, duration: int, units: int
) -> None:
    free = counted(taken)
    calendar = filled(taken)

    def fits(at: int) -> bool:
        return min(free[at : at + duration]) >= units

    assert calendar.find(units, duration, start) == next(t for t in range(start, END + 6) if fits(t))
    possible = [t for t in range(start, 46) if fits(t)]
    assert calendar.find_last(units, duration, start, 45) == (possible[-1] if possible else -1)
    assert calendar.least(start, start + duration) == min(free[start : start + duration])


@settings(max_examples=60)
@given(reservations, st.integers(0, 45), st.integers(1, UNITS), st.integers(0, 9))
def test_the_room_beside_all_reservations_but_one_is_that_of_a_calendar_without_it(
    taken: list[tuple[int, int, int]], now: int, least: int, which: int
) -> None:
    own = taken.pop(which) if which < len(taken) else (50, 55, 1)
    calendar = filled([*taken, own])
    calendar.advance(now)
    room = calendar.room(now, least, own)
    free = counted(taken)
    assert room[0][0] == now
    for units in range(least, UNITS + 1):
        until = next((at for at, left in room if left < units), None)
        assert until == next((t for t in range(now, END + 20) if free[t] < units), None)


@settings(max_examples=60)
@given(reservations, reservations)
def test_what_is_given_back_leaves_no_trace(
    kept: list[tuple[int, int, int]], returned: list[tuple[int, int, int]]
) -> None:
    calendar = filled(kept + returned)
    for start, end, units in returned:
        calendar.give(start, end, units)
    other = filled(kept)
    assert (calendar.times, calendar.free) == (other.times, other.free)


def test_what_lies_in_the_past_is_forgotten() -> None:
    calendar = filled([(0, 10, 4), (5, 20, 3)])
    calendar.advance(12)
    assert (calendar.times, calendar.free) == ([12, 20], [7, 10])
    calendar.take(0, 15, 7)
    assert calendar.find(1, 1, 0) == 15
