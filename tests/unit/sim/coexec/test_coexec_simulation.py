"""Co-execution in virtual time: copies, mistakes of the prediction, slow and failing devices."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import DeviceUnavailable, InvalidRequest
from polymux.perfmodel.coexec.compute import constant_rate
from polymux.perfmodel.coexec.link import LinkModel
from polymux.perfmodel.coexec.problem import Objective, gemm_problem
from polymux.perfmodel.coexec.unit import UnitModel
from polymux.perfmodel.energy import PowerModel
from polymux.sim.coexec import CoexecScenario, Failure, SpeedChange, ideal_s, simulate

BUS = LinkModel("pcie", 12e-6, 12.3e9, 12e-6, 12.3e9, overlaps=True)
CPU = UnitModel(
    "cpu:0/blas", "cpu:0", constant_rate(1.3e12, 2e-5), tile=8, min_chunk=64, power=PowerModel(40, 145)
)
CUDA = UnitModel(
    "gpu:0/cuda", "gpu:0", constant_rate(7.3e12, 1.5e-5), BUS, PowerModel(17, 70), 64, 128, 15 << 30
)
TENSOR = UnitModel(
    "gpu:1/tensor",
    "gpu:1",
    constant_rate(112e12, 1.5e-5),
    BUS,
    PowerModel(40, 300),
    128,
    256,
    15 << 30,
    "fp16",
)
PAPER = (CPU, CUDA, TENSOR)


def gemm(size):
    return tuple(gemm_problem(size, size, size, by=by) for by in ("rows", "columns"))


def assert_whole(outcome):
    problem = outcome.plan.problem
    pieces = [span.chunk for span in outcome.spans if span.kind == "compute"]
    edges = sorted({0, problem.across, *(its.across_first for its in pieces)})
    cells = np.zeros((problem.extent, len(edges) - 1), np.int8)
    for chunk in pieces:
        end = chunk.across_first + (chunk.across_count or problem.across)
        cells[
            chunk.first : chunk.first + chunk.count, edges.index(chunk.across_first) : edges.index(end)
        ] += 1
    lost = outcome.lost
    assert np.all(cells >= 1) if lost else np.all(cells == 1)


def assert_copies_take_turns(outcome):
    for kind in ("in", "out"):
        copies = sorted((span.start_ns, span.end_ns) for span in outcome.spans if span.kind == kind)
        assert all(one[1] <= other[0] for one, other in pairwise(copies))


def test_the_machine_of_the_paper_uses_all_its_devices_and_copies_take_turns():
    outcome = simulate(CoexecScenario(gemm(16384), PAPER))
    assert_whole(outcome)
    assert_copies_take_turns(outcome)
    assert len(outcome.plan.units) > 1
    assert outcome.ideal_s < outcome.makespan_s
    assert outcome.makespan_s == pytest.approx(outcome.plan.predicted_s, rel=0.15)  # bound by its copies
    alone = min(simulate(CoexecScenario(gemm(16384), (unit,))).makespan_s for unit in PAPER)
    assert outcome.makespan_s < alone
    assert outcome.energy_j is not None


def test_on_host_memory_it_is_the_ideal_time():
    units = (CPU, replace(CUDA, link=None, memory_nbytes=0))
    outcome = simulate(CoexecScenario(gemm(8192), units))
    assert_whole(outcome)
    assert outcome.makespan_s == pytest.approx(outcome.ideal_s, rel=0.01)
    assert outcome.makespan_s == pytest.approx(outcome.plan.predicted_s, rel=0.01)
    assert not outcome.stolen


@pytest.mark.parametrize("slow", ["cpu:0", "gpu:0"])
def test_a_device_that_is_half_as_fast_from_the_middle_on_costs_five_percent_at_most(slow):
    units = (replace(CPU, compute=constant_rate(6e12, 2e-5)), replace(CUDA, link=None, memory_nbytes=0))
    whole = simulate(CoexecScenario(gemm(8192), units))
    half = SpeedChange(slow, whole.makespan_s / 2, 2.0)
    outcome = simulate(CoexecScenario(gemm(8192), units, changes=(half,)))
    assert_whole(outcome)
    assert outcome.makespan_s <= 1.05 * outcome.ideal_s
    without = simulate(CoexecScenario(gemm(8192), units, changes=(half,), steal=False))
    assert without.makespan_s > 1.2 * outcome.ideal_s


def test_a_unit_slower_than_predicted_is_helped():
    units = (replace(CPU, compute=constant_rate(6e12, 2e-5)), replace(CUDA, link=None, memory_nbytes=0))
    scenario = CoexecScenario(gemm(8192), units, truth={CUDA.id: 1.5})
    outcome, static = simulate(scenario), simulate(replace(scenario, steal=False))
    assert outcome.stolen > 0
    true = [units[0], replace(units[1], compute=constant_rate(7.3e12 / 1.5, 1.5e-5))]
    assert outcome.makespan_s <= 1.05 * ideal_s(outcome.plan.problem, true)
    assert static.makespan_s > 1.15 * ideal_s(outcome.plan.problem, true)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_everything_is_computed_whatever_fails_and_becomes_slow(seed):
    rng = np.random.default_rng(seed)
    units = [
        replace(unit, memory_nbytes=int(rng.choice([0, 20 << 20, 200 << 20])) if unit.link else 0)
        for unit in PAPER
    ]
    size = int(rng.choice([700, 2048, 4096]))
    expected = simulate(CoexecScenario(gemm(size), tuple(units))).makespan_s
    changes = [
        SpeedChange(str(rng.choice(["cpu:0", "gpu:0", "gpu:1"])), float(rng.uniform(0, expected)), float(10 **
        rng.uniform(-0.5, 1))) for _ in range(rng.integers(0, 4))
    ]  # fmt: skip
    failing = [unit.id for unit in units[1:] if rng.random() < 0.4]
    failures = tuple(Failure(unit, float(rng.uniform(0, expected))) for unit in failing)
    outcome = simulate(CoexecScenario(gemm(size), tuple(units), changes=tuple(changes), failures=failures))
    assert_whole(outcome)
    assert_copies_take_turns(outcome)
    counts = Counter((span.unit, span.chunk) for span in outcome.spans if span.kind == "compute")
    assert set(counts.values()) == {1}


def test_when_all_fail_it_is_said():
    failures = tuple(Failure(unit.id, 1e-3) for unit in PAPER)
    with pytest.raises(DeviceUnavailable, match="failed"):
        simulate(CoexecScenario(gemm(16384), PAPER, failures=failures))


def test_the_same_scenario_has_the_same_outcome():
    scenario = CoexecScenario(gemm(8192), PAPER, changes=(SpeedChange("gpu:1", 0.01, 3.0),))
    assert simulate(scenario) == simulate(scenario)


def test_minimal_energy_uses_less_of_it_and_more_time():
    fast = simulate(CoexecScenario(gemm(16384), PAPER))
    thrifty = simulate(CoexecScenario(gemm(16384), PAPER, Objective(0.0, 1.0)))
    assert thrifty.energy_j < fast.energy_j
    assert thrifty.makespan_s > fast.makespan_s


def test_what_is_possible_knows_of_what_happens():
    problem = gemm_problem(1000, 1000, 1000)
    units = [UnitModel("a/u", "a", constant_rate(1e9)), UnitModel("b/u", "b", constant_rate(1e9))]
    assert ideal_s(problem, units) == pytest.approx(1.0)
    assert ideal_s(problem, units, [SpeedChange("a", 0.5, 2.0)]) == pytest.approx(0.5 + 1.0 / 1.5)
    assert ideal_s(problem, units, [SpeedChange("a", 0.5, 2.0), SpeedChange("a", 0.6, 1.0)]) == pytest.approx(
        1.025
    )
    assert ideal_s(problem, units, [], [Failure("a/u", 0.5)]) == pytest.approx(1.5)
    assert ideal_s(problem, units, [], [Failure("a/u", 0.1), Failure("b/u", 0.1)]) == float("inf")


@pytest.mark.parametrize(
    "bad",
    [
        lambda: CoexecScenario((), PAPER),
        lambda: CoexecScenario(gemm(64), ()),
        lambda: CoexecScenario(gemm(64), PAPER, failures=(Failure("gpu:9", 1.0),)),
        lambda: CoexecScenario(gemm(64), PAPER, changes=(SpeedChange("gpu:9", 1.0, 2.0),)),
        lambda: CoexecScenario(gemm(64), PAPER, truth={CPU.id: 0.0}),
        lambda: SpeedChange("gpu:0", -1.0, 2.0),
        lambda: SpeedChange("gpu:0", 1.0, 0.0),
        lambda: Failure("gpu:0", -1.0),
    ],
)
def test_what_makes_no_sense_is_refused(bad):
    with pytest.raises(InvalidRequest):
        bad()
