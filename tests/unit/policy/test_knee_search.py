"""The search for the knee of a model without a profile."""

from __future__ import annotations

import pytest

from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.policy.serving.knee_search import ENOUGH, KneeSearch, LearnedSurface, first_share

MS = 1_000_000
TENS = tuple(range(10, 101, 10))


def play(search: KneeSearch, knee: int, items: int = 1) -> list[int]:
    """Run batches where the search says until it is done; the shares that it visited."""
    surface = FlatKneeSurface(knee, ((1, 10 * MS), (8, 40 * MS)))
    visited = [search.share]
    while not search.done:
        assert len(visited) < 12, "the search does not end"
        for _ in range(ENOUGH):
            search.measure(visited[-1], items, surface.latency_ns(visited[-1], items))
        visited.append(search.share)
    return visited


@pytest.mark.parametrize("knee", TENS)
def test_the_knee_of_a_flat_surface_is_found_from_30_percent_in_few_steps(knee: int) -> None:
    search = KneeSearch(TENS, 100)
    visited = play(search, knee)
    assert visited[0] == 30
    assert search.share == knee
    assert len(set(visited)) <= 5


def test_the_first_share_is_rounded_to_what_the_device_offers() -> None:
    assert first_share((1, 2), 2) == 1
    assert first_share((1, 2, 4), 4) == 1
    assert first_share((50, 100), 100) == 50


def test_a_device_with_one_share_needs_no_search() -> None:
    assert KneeSearch((2,), 2).done


def test_a_share_on_which_the_model_does_not_run_is_left_out() -> None:
    search = KneeSearch(TENS, 100)
    search.exclude(30)
    assert search.share in (20, 40)
    play(search, 40)
    assert search.share == 40


def test_batches_of_different_sizes_are_compared_by_their_time_per_item_when_none_is_common() -> None:
    search = KneeSearch((50, 100), 100)
    for items in range(1, 13):
        search.measure(50, items, items * 2 * MS)
    assert search.share == 100
    for items in range(20, 32):
        search.measure(100, items, items * MS)
    assert search.done
    assert search.share == 100


def test_the_learned_surface_goes_through_what_was_measured() -> None:
    search = KneeSearch(TENS, 100)
    learned = LearnedSurface(search, 16, 5 * MS)
    assert learned.latency_ns(30, 1) == 5 * MS
    search.measure(30, 1, 10 * MS)
    assert learned.latency_ns(30, 1) == 10 * MS
    assert learned.latency_ns(30, 3) == 20 * MS
    search.measure(30, 5, 18 * MS)
    assert learned.latency_ns(30, 3) == 14 * MS
    assert learned.latency_ns(10, 1) == 30 * MS
    assert learned.latency_ns(100, 1) == 10 * MS
