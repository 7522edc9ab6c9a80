"""Division of what is not enough."""

from __future__ import annotations

from polymux.policy.serving.spacetime.fairness import divide


def test_small_demands_are_met_and_the_rest_is_divided_by_weight() -> None:
    given = divide(
        1.0, {"a": 0.1, "b": 0.9, "c": 0.9}, {"a": 100, "b": 100, "c": 200}, dict.fromkeys("abc", 0)
    )
    assert given["a"] == 0.1
    assert abs(given["b"] - 0.3) < 1e-9
    assert abs(given["c"] - 0.6) < 1e-9


def test_higher_priorities_come_first() -> None:
    given = divide(1.0, {"a": 0.8, "b": 0.8}, {"a": 1, "b": 10_000}, {"a": 1, "b": 0})
    assert given["a"] == 0.8
    assert abs(given["b"] - 0.2) < 1e-9


def test_nothing_is_given_beyond_the_demand() -> None:
    assert divide(5.0, {"a": 0.5, "b": 1.0}, {"a": 1, "b": 1}, {"a": 0, "b": 0}) == {"a": 0.5, "b": 1.0}
