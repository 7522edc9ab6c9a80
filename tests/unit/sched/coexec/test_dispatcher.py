"""The dispatcher: everything is computed once, whoever is slow, early or fails."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import DeviceUnavailable, InvalidRequest
from polymux.perfmodel.coexec.compute import constant_rate
from polymux.perfmodel.coexec.planner import Planner
from polymux.perfmodel.coexec.problem import gemm_problem
from polymux.perfmodel.coexec.unit import UnitModel
from polymux.sched.coexec.dispatcher import Dispatcher

UNITS = (
    UnitModel("cpu:0/blas", "cpu:0", constant_rate(1e11, 2e-5), tile=8, min_chunk=16),
    UnitModel("opencl:0/gemm", "opencl:0", constant_rate(9e10, 5e-5), tile=32, min_chunk=32),
    UnitModel("cpu:1/blas", "cpu:1", constant_rate(5e10, 2e-5), tile=8, min_chunk=16),
)


def run(dispatcher, problem, units, slowness, fails=(), ahead=1):
    """Let units take, compute as slowly as they are, and fail when they have ended so many chunks."""
    cells = np.zeros(problem.extent, np.int64)
    events, at = [], {unit.id: 0 for unit in units}
    flying = {unit.id: [] for unit in units}
    ended = dict.fromkeys(at, 0)
    failed = set()
    now = 0

    def feed():
        for unit in units:
            while unit.id not in failed and len(flying[unit.id]) < ahead:
                chunk = dispatcher.take(unit.id, now)
                if chunk is None:
                    break
                seconds = unit.compute.predict(problem.features(chunk.count)) * slowness(unit.id, now)
                at[unit.id] = max(at[unit.id], now) + max(1, round(seconds * 1e9))
                flying[unit.id].append(chunk)
                heapq.heappush(events, (at[unit.id], unit.id, chunk.first, chunk))

    feed()
    while events and not dispatcher.finished:
        now, unit, _, chunk = heapq.heappop(events)
        if unit in failed:
            continue
        if dict(fails).get(unit) == ended[unit]:
            failed.add(unit)
            dispatcher.failed(unit, now)
        else:
            ended[unit] += 1
            flying[unit].remove(chunk)
            dispatcher.done(unit, chunk, now)
            cells[chunk.first : chunk.first + chunk.count] += 1
        feed()
    return cells, now / 1e9


def plan_of(problem, units=UNITS[:2]):
    return Planner(units).plan(problem)


def test_as_predicted_nobody_takes_over_and_all_end_when_predicted():
    problem = gemm_problem(4096, 2048, 2048)
    plan = plan_of(problem)
    dispatcher = Dispatcher(plan, UNITS[:2])
    cells, end_s = run(dispatcher, problem, UNITS[:2], lambda unit, now: 1.0)
    assert np.all(cells == 1)
    assert dispatcher.finished
    assert all(its.stolen_from is None for its in dispatcher.runs)
    assert end_s == pytest.approx(plan.predicted_s, rel=0.02)


@pytest.mark.parametrize("slow", ["cpu:0/blas", "opencl:0/gemm"])
@pytest.mark.parametrize("when", [0.0, 0.3, 0.5, 0.7])
def test_a_unit_that_becomes_half_as_fast_costs_at_most_five_percent_more_than_it_must(slow, when):
    problem = gemm_problem(8192, 4096, 4096)
    plan = plan_of(problem)
    start = when * plan.predicted_s * 1e9
    dispatcher = Dispatcher(plan, UNITS[:2])
    cells, end_s = run(
        dispatcher, problem, UNITS[:2], lambda unit, now: 2.0 if unit == slow and now >= start else 1.0
    )
    assert np.all(cells == 1)
    rates = {unit.id: 1 / unit.compute.predict(problem.features(8192)) for unit in UNITS[:2]}
    whole, halved = sum(rates.values()), sum(rates.values()) - rates[slow] / 2
    possible = when * plan.predicted_s + (1 - whole * when * plan.predicted_s) / halved
    assert end_s <= 1.05 * possible
    still = Dispatcher(plan, UNITS[:2], steal=False)
    _, without = run(
        still, problem, UNITS[:2], lambda unit, now: 2.0 if unit == slow and now >= start else 1.0
    )
    assert without > end_s


def test_a_unit_that_is_not_in_the_plan_helps_and_one_of_a_used_device_does_not():
    problem = gemm_problem(4096, 2048, 2048)
    plan = plan_of(problem, UNITS[:1])
    units = [*UNITS[:2], replace(UNITS[0], id="cpu:0/other")]
    dispatcher = Dispatcher(plan, units)
    chunk = dispatcher.take("cpu:0/blas", 0)
    assert chunk is not None
    assert dispatcher.take("cpu:0/other", 0) is None


@given(
    seed=st.integers(0, 100_000), m=st.integers(1, 3000), n=st.integers(1, 400), ahead=st.integers(1, 3),
    fails=st.dictionaries(st.sampled_from([unit.id for unit in UNITS[:2]]), st.integers(0, 4), max_size=2),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_everything_is_computed_once_whatever_happens(seed, m, n, ahead, fails):
    rng = np.random.default_rng(seed)
    problem = gemm_problem(m, n, 256)
    plan = plan_of(problem, UNITS)
    dispatcher = Dispatcher(plan, UNITS)
    cells, _ = run(
        dispatcher,
        problem,
        UNITS,
        lambda unit, now: float(10 ** rng.uniform(-1, 1.5)),
        tuple(fails.items()),
        ahead,
    )
    assert dispatcher.finished
    assert np.all(cells == 1)
    assert sum(its.chunk.count for its in dispatcher.runs) == m


def test_when_every_unit_has_failed_it_is_said():
    problem = gemm_problem(4096, 512, 512)
    dispatcher = Dispatcher(plan_of(problem), UNITS[:2])
    dispatcher.take("cpu:0/blas", 0)
    dispatcher.failed("cpu:0/blas", 10)
    with pytest.raises(DeviceUnavailable, match=r"cpu:0/blas, opencl:0/gemm"):
        dispatcher.failed("opencl:0/gemm", 20)


def test_what_makes_no_sense_is_refused():
    problem = gemm_problem(4096, 512, 512)
    plan = plan_of(problem)
    with pytest.raises(InvalidRequest, match="no unit"):
        Dispatcher(plan, UNITS[:1])
    dispatcher = Dispatcher(plan, UNITS[:2])
    first = dispatcher.take("cpu:0/blas", 0)
    second = dispatcher.take("cpu:0/blas", 0)
    with pytest.raises(InvalidRequest, match="order of taking"):
        dispatcher.done("cpu:0/blas", second, 1)
    dispatcher.done("cpu:0/blas", first, 1)
    dispatcher.failed("cpu:0/blas", 2)
    for call in (
        lambda: dispatcher.take("cpu:0/blas", 3),
        lambda: dispatcher.done("cpu:0/blas", second, 3),
        lambda: dispatcher.failed("cpu:0/blas", 3),
    ):
        with pytest.raises(InvalidRequest, match="has failed"):
            call()


def test_pieces_are_not_cut_for_units_that_are_not_in_the_plan_and_need_not_help():
    problem = gemm_problem(4096, 2048, 2048)
    plan = Planner(UNITS, lead_s=1.0).plan(problem, only=[unit.id for unit in UNITS[:2]])
    dispatcher = Dispatcher(plan, UNITS)
    planned = {part.unit: part.chunks for part in plan.parts}
    for unit in UNITS[:2]:
        assert not dispatcher.handed_out
        assert dispatcher.take(unit.id, 0) == planned[unit.id][0]
    assert dispatcher.handed_out
    assert dispatcher.take(UNITS[2].id, 0) is None


def test_what_a_failed_unit_leaves_is_there_to_be_handed_out():
    plan = Planner(UNITS[:2], lead_s=1.0).plan(gemm_problem(4096, 2048, 2048))
    dispatcher = Dispatcher(plan, UNITS[:2])
    for unit in UNITS[:2]:
        dispatcher.take(unit.id, 0)
    dispatcher.failed(UNITS[0].id, 1)
    assert not dispatcher.handed_out


def test_what_would_cost_more_to_hand_over_than_it_saves_stays_where_it_is():
    problem = gemm_problem(4096, 2048, 2048)
    plan = plan_of(problem)
    for handover_s, stolen in ((0.0, True), (10.0, False)):
        dispatcher = Dispatcher(plan, UNITS[:2], handover_s=handover_s)
        cells, _ = run(dispatcher, problem, UNITS[:2], lambda unit, now: 2.0 if unit == "cpu:0/blas" else 1.0)
        assert np.all(cells == 1)
        assert any(its.stolen_from is not None for its in dispatcher.runs) == stolen


def test_a_plan_is_followed_until_something_says_that_it_is_wrong():
    problem = gemm_problem(4096, 2048, 2048)
    plan = Planner(UNITS[:2], lead_s=1.0).plan(problem)
    uneven = replace(
        plan,
        parts=tuple(
            replace(part, chunks=(replace(part.chunks[0], first=first, count=count),))
            for part, first, count in zip(plan.parts, (0, 3000), (3000, 1096), strict=True)
        ),
    )
    dispatcher = Dispatcher(uneven, UNITS[:2])
    assert [dispatcher.take(part.unit, 0).count for part in uneven.parts] == [3000, 1096]
