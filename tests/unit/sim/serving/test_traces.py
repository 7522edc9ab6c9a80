"""Traces as values: nothing in them is rounded, cut off or read along the wrong axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polymux.core.errors import InvalidRequest
from polymux.sim.serving import Counts, Timestamps

WRONG: dict[str, tuple[Any, str]] = {
    "two axes": ([[0, 1], [2, 3]], r"shape \(2, 2\); give one row"),
    "a column": (np.zeros((3, 1), np.int64), r"shape \(3, 1\)"),
    "a number": (5, r"shape \(\)"),
    "rows of different lengths": ([[1], [1, 2]], "no row of numbers"),
    "nothing": ([], "it has no .*; give at least one"),
    "parts": ([0.5, 1.5], "1.5 is none of its .*; give whole numbers"),
    "no number": ([float("nan")], "nan"),
    "text": (["1", "2"], "1 is none"),
    "more than 64 bits hold": ([0, 2**63], "9.22"),
    "far more than that": ([0, 2**70], "give whole numbers"),
}


@pytest.mark.parametrize("process", [Timestamps, Counts])
@pytest.mark.parametrize(("values", "problem"), WRONG.values(), ids=WRONG)
def test_what_is_no_row_of_whole_numbers_is_refused(process: Any, values: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        process(values)


@pytest.mark.parametrize(
    ("times", "problem"), [([0, 5, 3], "timestamp 3 is 3 ns"), ([-1, 0], "timestamp 1 is -1 ns")]
)
def test_a_timestamp_out_of_its_order_is_named(times: list[int], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        Timestamps(times)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.uint64])
def test_whole_numbers_of_any_width_arrive_as_they_are(kind: Any) -> None:
    rng = np.random.default_rng(0)
    times = Timestamps(np.array([0, 7, 200], kind))
    assert times.times_ns(rng, 100).tolist() == [0, 7]
    assert len(Counts(np.array([2, 0, 1], kind)).times_ns(rng, 3 * 10**9)) == 3
