"""When measuring stops, and how sure a median is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np
import pytest

from polymux.core.errors import InvalidRequest
from polymux.profiling.confidence import CONFIDENCES, interval_rank, median
from polymux.profiling.options import ProfileOptions
from polymux.profiling.repeats import TooSlow, repeat

MS = 1_000_000


def returning(times: Iterator[int]) -> tuple[Callable[[], int], list[int]]:
    taken: list[int] = []

    def once() -> int:
        taken.append(next(times))
        return taken[-1]

    return once, taken


@pytest.mark.parametrize("confidence", CONFIDENCES)
@pytest.mark.parametrize("count", [12, 30, 101, 1000])
def test_intervals_cover_the_median_as_often_as_they_say(confidence: float, count: int) -> None:
    rng = np.random.default_rng(count)
    samples = np.sort(rng.lognormal(size=(3000, count)), axis=1)  # its median is 1
    rank = interval_rank(count, confidence)
    covered = np.mean((samples[:, rank - 1] <= 1) & (samples[:, -rank] >= 1))
    assert covered >= confidence - 0.02
    assert rank == interval_rank(count, confidence)


def test_too_few_samples_have_no_interval_and_other_confidences_are_refused() -> None:
    assert median([1.0] * 5, 0.95) is None
    assert median([1.0] * 6, 0.95) is not None
    with pytest.raises(InvalidRequest, match=r"0\.951.*0\.95,"):
        median([1.0] * 50, 0.951)


def test_a_median_lies_in_its_interval() -> None:
    found = median([5, 1, 3, 2, 4, 6, 8, 7, 9, 10], 0.95)
    assert found is not None
    assert (found.value, found.low, found.high) == (5.5, 2, 9)
    assert found.half_width == 3.5


def test_steady_times_are_repeated_the_least_number_of_times() -> None:
    once, taken = returning(cycle([MS]))
    times = repeat(once, ProfileOptions(min_repeats=10))
    assert (times.count, times.median_ns, times.half_width_ns, times.is_precise) == (10, MS, 0, True)
    assert len(taken) == 10 + 50  # the warm-up ends after fifty short runs


def test_the_warm_up_is_not_counted() -> None:
    once, _ = returning(iter([900 * MS, 80 * MS, 50 * MS] + [40 * MS] * 100))
    times = repeat(once, ProfileOptions())
    assert times.median_ns == times.mean_ns == times.p95_ns == 40 * MS


def test_noisy_times_are_repeated_until_the_interval_is_narrow() -> None:
    rng = np.random.default_rng(0)
    once, _ = returning(iter(rng.normal(10 * MS, 1 * MS, 5000).astype(int).tolist()))
    options = ProfileOptions(precision=0.02, place_s=60)
    times = repeat(once, options)
    assert times.is_precise
    assert 20 < times.count < 1000
    assert times.half_width_ns <= 0.02 * times.median_ns
    assert times.min_ns < times.median_ns < times.p95_ns


@pytest.mark.parametrize(("options", "count"), [({"max_repeats": 25}, 25), ({"place_s": 0.3}, 30)])
def test_hopeless_noise_ends_at_the_limit_and_says_so(options: dict[str, float], count: int) -> None:
    once, _ = returning(cycle([5 * MS, 15 * MS, 10 * MS]))
    times = repeat(once, ProfileOptions(precision=0.001, **options))  # type: ignore[arg-type]
    assert not times.is_precise
    assert abs(times.count - count) <= 3


def test_a_batch_that_takes_too_long_is_given_up_after_the_load() -> None:
    once, taken = returning(iter([20_000 * MS, 6_000 * MS]))
    with pytest.raises(TooSlow, match=r"6\.0 s, more than 5 s"):
        repeat(once, ProfileOptions())
    assert len(taken) == 2
    once, _ = returning(iter([20_000 * MS] + [100 * MS] * 100))
    assert repeat(once, ProfileOptions()).median_ns == 100 * MS


@pytest.mark.parametrize(
    "values",
    [
        {"batches": ()},
        {"batches": (2, 1)},
        {"batches": (0, 1)},
        {"batches": (1, 5000)},
        {"units": (0,)},
        {"confidence": 0.5},
        {"precision": 0},
        {"precision": 1.5},
        {"min_repeats": 3},
        {"max_repeats": 9},
        {"place_s": 0},
        {"batch_s": -1},
    ],
)
def test_options_that_cannot_be_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        ProfileOptions(**values)  # type: ignore[arg-type]
