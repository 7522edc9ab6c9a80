"""Cuts are the best there are: compared with trying all of them."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

from hypothesis import given
from hypothesis import strategies as st

from polymux.training.stage_cuts import choose_cuts

TIMES = st.lists(st.integers(1, 50), min_size=1, max_size=9)


def _longest(times: list[int], cuts: tuple[int, ...]) -> int:
    ends = [0, *(cut + 1 for cut in cuts), len(times)]
    return max(sum(times[begin:end]) for begin, end in pairwise(ends))


def _all(places: list[int]) -> list[tuple[int, ...]]:
    return [cuts for count in range(len(places) + 1) for cuts in combinations(places, count)]


@given(times=TIMES, parts=st.integers(1, 5), data=st.data())
def test_no_other_choice_of_so_many_parts_has_a_longest_part_that_is_much_shorter(
    times: list[int], parts: int, data: st.DataObject
) -> None:
    nbytes = data.draw(st.dictionaries(st.integers(0, len(times) - 1), st.integers(0, 9)))
    cuts = choose_cuts(times, nbytes, parts=parts, longest_ns=None)
    places = [place for place in nbytes if place < len(times) - 1]
    best = min(_longest(times, other) for other in _all(sorted(places)) if len(other) < parts)
    assert len(cuts) < parts
    assert set(cuts) <= set(places)
    assert cuts == sorted(cuts)
    assert best <= _longest(times, tuple(cuts)) <= 1.05 * best


@given(times=TIMES, bound=st.integers(1, 100), data=st.data())
def test_a_bound_is_kept_by_the_fewest_parts_with_the_least_bytes_across(
    times: list[int], bound: int, data: st.DataObject
) -> None:
    nbytes = data.draw(st.dictionaries(st.integers(0, len(times) - 1), st.integers(0, 9)))
    cuts = choose_cuts(times, nbytes, parts=None, longest_ns=bound)
    places = sorted(place for place in nbytes if place < len(times) - 1)
    reachable = max(bound, _longest(times, tuple(places)))
    assert _longest(times, tuple(cuts)) <= reachable
    cost = (len(cuts), sum(nbytes[cut] for cut in cuts))
    others = [other for other in _all(places) if _longest(times, other) <= reachable]
    assert cost == min((len(other), sum(nbytes[cut] for cut in other)) for other in others)
