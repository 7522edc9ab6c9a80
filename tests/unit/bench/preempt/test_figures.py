"""Rounds become results: percentiles, steps in a window, medians, and when they are steady."""

from __future__ import annotations

import pytest

from polymux.bench.preempt.figures import (
    Figures,
    best_alone,
    medians,
    percentile_ms,
    steady,
    steps_per_s,
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


def test_medians_are_taken_figure_by_figure_and_leave_out_what_is_not_there() -> None:
    rounds = [
        {"alone": Figures(p50, p99), "train_alone": Figures(train_steps_per_s=steps)}
        for p50, p99, steps in ((1.0, 9.0, 5.0), (2.0, 7.0, 4.0), (3.0, 8.0, 6.0))
    ]
    found = medians(rounds)
    assert found["alone"] == Figures(2.0, 8.0)
    assert found["train_alone"] == Figures(train_steps_per_s=5.0)


def test_figures_are_steady_when_one_more_round_moves_no_median_by_more_than_a_twentieth() -> None:
    rounds = [{"alone": Figures(10.0, 20.0)}, {"alone": Figures(10.0, 20.0)}]
    assert not steady(rounds), "two rounds say nothing"
    assert steady([*rounds, {"alone": Figures(30.0, 60.0)}])
    assert not steady(
        [{"alone": Figures(10.0, 20.0)}, {"alone": Figures(12.0, 20.0)}, {"alone": Figures(10.0, 20.0)}]
    )


def test_the_best_way_alone_is_that_with_the_lowest_tail() -> None:
    found = {"spinning": Figures(4.0, 9.0), "sleeping": Figures(5.0, 8.0)}
    assert best_alone(found, ("spinning", "sleeping")) == "sleeping"
