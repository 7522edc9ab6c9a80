"""What units take from each other is learned from runs together, and plans count on it."""

from __future__ import annotations

import numpy as np
import pytest

from polymux.coexec.company import Company
from polymux.coexec.knowledge import Shelf
from polymux.coexec.operation import ChunkKernel, Way
from polymux.coexec.places import Place
from polymux.coexec.units import Unit
from polymux.perfmodel.coexec.compute import constant_rate
from polymux.perfmodel.coexec.problem import Objective, gemm_problem

PAIR = ("a", "b")
PROBLEM, ALIKE, OTHER = (
    gemm_problem(1024, 1024, 1024),
    gemm_problem(1100, 1024, 1024),
    gemm_problem(64, 64, 64),
)
STREAMS = ("cpu:0/0", "cpu:1/0")


def test_a_lasting_slowdown_counts_from_the_first_run_and_for_problems_of_the_size_in_this_company_only() -> (
    None
):
    company = Company(2e-4)
    company.saw("a", PAIR, PROBLEM, 1.2)
    assert company.slowdowns(PAIR, PROBLEM) == {"a": pytest.approx(1.2)}
    assert company.slowdowns(PAIR, ALIKE) == {"a": pytest.approx(1.2)}
    assert company.slowdowns(PAIR, OTHER) == {}
    assert company.slowdowns(("a", "c"), PROBLEM) == {}


def test_a_spike_is_no_slowdown() -> None:
    company = Company(2e-4)
    company.saw("a", PAIR, PROBLEM, 6.0)
    assert company.slowdown("a", PAIR, PROBLEM) == 1.0
    company.saw("a", PAIR, PROBLEM, 1.1)
    assert company.slowdown("a", PAIR, PROBLEM) == pytest.approx(1.1)


def test_who_is_faster_beside_others_is_not_slowed() -> None:
    company = Company(2e-4)
    company.saw("a", PAIR, PROBLEM, 0.8)
    assert company.slowdown("a", PAIR, PROBLEM) == 1.0


def test_what_bringing_units_together_costs_is_the_middle_of_what_runs_took_longer() -> None:
    company = Company(2e-4)
    assert company.together_s(PAIR, PROBLEM) == 2e-4
    for run_s in (0.0105, 0.0104, 0.05, 0.0106, 0.0105):
        company.took_together(PAIR, PROBLEM, run_s, 0.01, 0.01)
    assert company.has_news
    assert company.together_s(PAIR, PROBLEM) == pytest.approx(0.0005)
    assert company.together_s(PAIR, OTHER) == company.together_s(("a", "c"), PROBLEM) == 2e-4
    for _ in range(9):
        company.took_together(PAIR, PROBLEM, 0.009, 0.01, 0.009)
    assert company.together_s(PAIR, PROBLEM) == 0.0, "it never counts for several units"


def test_a_unit_that_took_far_longer_than_predicted_is_not_taken_for_a_cost_of_company() -> None:
    company = Company(2e-4)
    company.took_together(PAIR, PROBLEM, 0.0201, 0.01, 0.02)
    assert company.together_s(PAIR, PROBLEM) == pytest.approx(0.0001 + 0.1 * 0.0201)


def test_units_that_plans_leave_apart_get_another_try_whatever_was_seen() -> None:
    shelf, units, way = shelf_of_two()
    names = shelf.plan("before", [way], units, Objective(), {}).plan.units
    for _ in range(9):
        shelf.company.took_together(names, PROBLEM, 0.1, 0.01, 0.01)
        for unit in names:
            shelf.company.saw(unit, names, PROBLEM, 3.0)
    lengths = [len(shelf.plan(number, [way], units, Objective(), {}).plan.units) for number in range(12)]
    assert lengths[0] == 1
    assert lengths[-1] == 2


def shelf_of_two() -> tuple[Shelf, tuple[Unit, ...], Way]:
    units = tuple(
        Unit(
            Place(stream, stream[:5], "key", frozenset({n}), frozenset({n}), True),
            ChunkKernel("gemm"),
            "fp32",
        )
        for n, stream in enumerate(STREAMS)
    )
    shelf = Shelf(np.dtype(np.float32), units, {}, {}, [frozenset(STREAMS)])
    for unit in units:
        shelf.learn(unit, constant_rate(1e11))
    return shelf, units, Way(PROBLEM, (0, None), (0,))


def test_plans_give_a_unit_that_others_slow_less_and_nothing_where_one_alone_is_faster() -> None:
    shelf, units, way = shelf_of_two()
    first, second = (unit.id for unit in units)
    before = shelf.plan("before", [way], units, Objective(), {})
    assert len(before.plan.units) == 2
    shelf.company.saw(second, before.plan.units, PROBLEM, 1.5)
    slowed = shelf.plan("slowed", [way], units, Objective(), {})
    lengths = {part.unit: part.count for part in slowed.plan.parts}
    assert lengths[first] / lengths[second] == pytest.approx(1.5, rel=0.05)
    assert slowed.expected_s(second, 512) == pytest.approx(1.5 * before.expected_s(second, 512))
    assert slowed.loads({})[second].slowdown == pytest.approx(1.5)
    for unit in (first, second):
        for _ in range(9):
            shelf.company.saw(unit, before.plan.units, PROBLEM, 3.0)
    assert len(shelf.plan("alone", [way], units, Objective(), {}).plan.units) == 1


def test_what_company_costs_reaches_the_next_plans_though_no_run_could_teach_a_model() -> None:
    shelf, units, way = shelf_of_two()
    before = shelf.plan("call", [way], units, Objective(), {})
    for _ in range(3):
        shelf.company.saw(units[0].id, before.plan.units, PROBLEM, 1.3)
        shelf.company.took_together(before.plan.units, PROBLEM, 0.011, 0.01, 0.01)
    shelf.refine(1)
    after = shelf.plan("call", [way], units, Objective(), {})
    assert after.slowdowns == {units[0].id: pytest.approx(1.3)}
    ends_s = [part.end_s for part in after.plan.parts]
    assert after.plan.predicted_s == pytest.approx(max(ends_s) + 1e-3)


def test_what_a_unit_alone_takes_longer_than_its_model_says_is_predicted_too() -> None:
    shelf, units, way = shelf_of_two()
    alone = units[:1]
    before = shelf.plan("before", [way], alone, Objective(), {})
    shelf.company.saw(alone[0].id, before.plan.units, PROBLEM, 1.1)
    after = shelf.plan("after", [way], alone, Objective(), {})
    assert after.plan.predicted_s == pytest.approx(1.1 * before.plan.predicted_s)
    assert after.slowdowns == {alone[0].id: pytest.approx(1.1)}
