"""Rounds become results: percentiles of all requests, steps in a window, medians, and when they are steady."""

from __future__ import annotations

import pytest

from polymux.bench.preempt.figures import (
    Figures,
    Turn,
    best_alone,
    figures,
    percentile_ms,
    steady,
    steps_per_s,
    together,
)

MS = 1_000_000


def test_steps_are_counted_in_parts_where_the_window_cuts_them() -> None:
    ends = [0, 100 * MS, 200 * MS, 300 * MS, 400 * MS]
    assert steps_per_s(ends, 50 * MS, 350 * MS) == pytest.approx(10.0)
    assert steps_per_s(ends, 100 * MS, 125 * MS) == pytest.approx(10.0)


def test_training_that_stood_still_in_the_window_made_no_steps() -> None:
    assert steps_per_s([0, 10 * MS], 20 * MS, 30 * MS) == 0.0
    assert steps_per_s([0], 20 * MS, 30 * MS) == 0.0


def test_a_long_step_counts_only_by_the_part_that_lies_in_the_window() -> None:
    assert steps_per_s([0, 1000 * MS], 0, 500 * MS) == pytest.approx(1.0)


def test_percentiles_of_nothing_are_nothing() -> None:
    assert percentile_ms([], 99) is None
    assert percentile_ms([2 * MS, 4 * MS], 50) == pytest.approx(3.0)


def test_the_best_way_alone_is_that_with_the_lowest_tail() -> None:
    found = {"spinning": Figures(4.0, 9.0), "sleeping": Figures(5.0, 8.0)}
    assert best_alone(found, ("spinning", "sleeping")) == "sleeping"


def test_percentiles_are_those_of_the_requests_of_all_rounds() -> None:
    rounds = [
        {"alone": Turn([1 * MS, 9 * MS]), "train_alone": Turn(train_steps_per_s=steps)}
        for steps in (5.0, 4.0, 6.0)
    ]
    rounds[1] = {**rounds[1], "alone": Turn([3 * MS] * 100)}
    found = together(rounds)
    assert found["alone"] == Figures(
        3.0, percentile_ms([1 * MS, 9 * MS] * 2 + [3 * MS] * 100, 99), requests=104
    )
    assert found["train_alone"] == Figures(train_steps_per_s=5.0)


def test_waits_are_those_that_inference_measured_unless_a_server_knows_them() -> None:
    assert figures([Turn([MS], [2 * MS]), Turn([MS], [2 * MS])]).wait_p99_ms == pytest.approx(2.0)
    told = [Turn([MS], [], 8.0, wait) for wait in (0.1, 0.4, 0.2)]
    assert figures(told) == Figures(1.0, 1.0, 8.0, 0.2, 3)


def test_figures_are_steady_when_one_more_round_moves_none_by_more_than_a_twentieth() -> None:
    steady_turn, slow_turn = {"alone": Turn([10 * MS] * 9)}, {"alone": Turn([20 * MS] * 90)}
    assert not steady([steady_turn, steady_turn]), "two rounds say nothing"
    assert steady([steady_turn, steady_turn, steady_turn])
    assert not steady([steady_turn, steady_turn, slow_turn])
