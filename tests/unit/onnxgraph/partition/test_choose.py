"""Which cuts are picked: checked against all possible ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.partition.choose import OVERHEAD, Wish, choose, cost_ns
from polymux.onnxgraph.partition.flow import CutPoint

MS = 1e6
TIMES = st.lists(st.floats(0, 50 * MS), min_size=1, max_size=9)
SIZES = st.lists(st.integers(0, 4 << 20), min_size=9, max_size=9)


def points_of(times: Sequence[float], sizes: Sequence[int]) -> list[CutPoint]:
    return [CutPoint(at, (f"t{at}",), sizes[at - 1]) for at in range(1, len(times))]


def lengths(times: Sequence[float], cuts: Sequence[CutPoint]) -> list[float]:
    edges = [0, *(cut.before for cut in cuts), len(times)]
    return [sum(times[a:b]) for a, b in pairwise(edges)]


@given(TIMES, SIZES, st.integers(1, 9))
def test_so_many_parts_are_as_even_as_any_and_no_cheaper_cuts_are_as_even(
    times: list[float], sizes: list[int], parts: int
) -> None:
    points = points_of(times, sizes)
    cuts = choose(times, points, Wish(parts=parts))
    number = min(parts, len(times))
    assert len(cuts) == number - 1
    assert cuts == sorted(cuts, key=lambda cut: cut.before)
    every = list(combinations(points, number - 1))
    shortest = min(max(lengths(times, its)) for its in every)
    limit = 1.05 * shortest * (1 + 1e-6) + 1e-3
    assert max(lengths(times, cuts)) <= limit
    cheapest = min(cost_ns(its) for its in every if max(lengths(times, its)) <= 1.05 * shortest)
    assert cost_ns(cuts) <= cheapest * (1 + 1e-9)


@given(TIMES, SIZES, st.floats(0.01 * MS, 100 * MS))
def test_no_part_is_longer_than_asked_for_where_that_is_possible_with_the_cheapest_cuts(
    times: list[float], sizes: list[int], longest: float
) -> None:
    points = points_of(times, sizes)
    cuts = choose(times, points, Wish(longest_ns=longest))
    limit = max(longest, *times)
    assert max(lengths(times, cuts)) <= limit * (1 + 1e-6)
    every = (its for count in range(len(points) + 1) for its in combinations(points, count))
    cheapest = min(cost_ns(its) for its in every if max(lengths(times, its)) <= limit)
    assert cost_ns(cuts) <= cheapest * (1 + 1e-9)


@given(TIMES, SIZES)
def test_without_a_wish_the_cuts_cost_a_small_part_of_the_time(times: list[float], sizes: list[int]) -> None:
    cuts = choose(times, points_of(times, sizes), Wish())
    assert cost_ns(cuts) <= OVERHEAD * sum(times)
    if cuts:
        assert max(lengths(times, cuts)) < sum(times)


def test_a_model_of_one_long_node_is_not_cut_for_nothing() -> None:
    times = [0.1 * MS, 100 * MS, 0.1 * MS]
    assert choose(times, points_of(times, [0, 0]), Wish()) == []


def test_a_long_model_is_cut_into_even_parts_by_default() -> None:
    times = [4 * MS] * 40
    cuts = choose(times, points_of(times, [1000] * 40), Wish())
    assert len(cuts) >= 15
    assert max(lengths(times, cuts)) <= 8 * MS


def test_a_cut_that_hardly_shortens_the_longest_part_is_not_made_by_default() -> None:
    times = [0.6 * MS, 9.42 * MS, 9.2 * MS]
    (cut,) = choose(times, points_of(times, [1000, 1000]), Wish())
    assert cut.before == 2


def test_cuts_go_where_little_is_carried() -> None:
    times = [1 * MS] * 8
    sizes = [8 << 20, 8 << 20, 8 << 20, 8 << 20, 100, 8 << 20, 8 << 20]
    (cut,) = choose(times, points_of(times, sizes), Wish(longest_ns=5 * MS))
    assert cut.before == 5


@pytest.mark.parametrize(
    "wish",
    [
        {"parts": 0},
        {"parts": 65},
        {"longest_ns": 0.0},
        {"longest_ns": float("nan")},
        {"parts": 2, "longest_ns": 1.0},
    ],
)
def test_wishes_that_make_no_sense_are_refused(wish: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        Wish(**wish)  # type: ignore[arg-type]
