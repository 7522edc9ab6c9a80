"""Plans that can be run: tiles, chunks, memory, and when one unit is enough; and the planner that keeps them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.adapt import adapt
from polymux.perfmodel.coexec.compute import constant_rate
from polymux.perfmodel.coexec.link import LinkModel
from polymux.perfmodel.coexec.optimize import optimize
from polymux.perfmodel.coexec.pareto import pareto
from polymux.perfmodel.coexec.planner import Planner
from polymux.perfmodel.coexec.problem import Objective, gemm_problem
from polymux.perfmodel.coexec.traffic import traffic
from polymux.perfmodel.coexec.unit import Load, UnitModel
from polymux.perfmodel.energy import PowerModel
from tests.unit.perfmodel.coexec.machines import random_machine

BLAS = UnitModel("cpu:0/blas", "cpu:0", constant_rate(1e11, 2e-5), tile=8, min_chunk=32)
OPENCL = UnitModel("opencl:0/gemm", "opencl:0", constant_rate(9e10, 5e-5), tile=64, min_chunk=64)


def covered(plan):
    """How often each cell of the result is computed."""
    cells = np.zeros((plan.problem.extent, plan.problem.across), np.int64)
    for part in plan.parts:
        for chunk in part.chunks:
            width = (
                slice(chunk.across_first, chunk.across_first + chunk.across_count)
                if chunk.across_count
                else slice(None)
            )
            cells[chunk.first : chunk.first + chunk.count, width] += 1
    return cells


def test_parts_are_multiples_of_tiles_but_for_the_one_that_takes_the_rest():
    plan = adapt(optimize(gemm_problem(1001, 1024, 1024), [BLAS, OPENCL]), [BLAS, OPENCL])
    parts = {part.unit: part for part in plan.parts}
    assert parts["opencl:0/gemm"].count % 64 == 0
    assert sum(part.count for part in plan.parts) == 1001
    assert plan.predicted_s == max(part.end_s for part in plan.parts)


@given(seed=st.integers(0, 10_000), size=st.integers(1, 500), across=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_every_cell_is_computed_once_whatever_tiles_and_memories_there_are(seed, size, across):
    rng = np.random.default_rng(seed)
    units = [
        replace(
            unit, tile=int(rng.choice([1, 8, 64])), min_chunk=int(rng.choice([1, 32, 200])),
            memory_nbytes=0 if unit.link is None else int(rng.choice([0, 40_000, 400_000])),
        )
        for unit in random_machine(rng, 1, 2, power=False)
    ]  # fmt: skip
    problem = gemm_problem(size, across, 64)
    plan = adapt(optimize(problem, units), units, overhead=float(rng.choice([1e-3, 0.05, 10])))
    assert np.all(covered(plan) == 1)
    memories = {unit.id: unit for unit in units}
    for part in plan.parts:
        limit = memories[part.unit].memory_nbytes
        for chunk in part.chunks:
            width = (chunk.across_count or across) / across
            needed = problem.fixed_nbytes * width + chunk.count * (
                problem.in_nbytes + problem.out_nbytes * width
            )
            assert not limit or needed <= limit


def test_chunks_are_halves_of_what_is_left_and_add_no_more_than_they_may():
    units = [BLAS, OPENCL]
    plan = adapt(optimize(gemm_problem(4096, 4096, 4096), units), units, overhead=0.01)
    for part, unit in zip(sorted(plan.parts, key=lambda part: part.unit), units, strict=True):
        lengths = [chunk.count for chunk in part.chunks]
        assert len(lengths) >= 5
        assert lengths[0] == pytest.approx(part.count / 2, abs=unit.tile)
        assert sorted(lengths, reverse=True)[:-1] == lengths[:-1]
        took = sum(unit.compute.predict(plan.problem.features(length)) for length in lengths)
        assert took <= 1.01 * unit.compute.predict(plan.problem.features(part.count))


def test_a_short_part_is_not_cut():
    units = [BLAS, OPENCL]
    plan = adapt(optimize(gemm_problem(512, 512, 512), units), units, overhead=0.001)
    assert all(len(part.chunks) == 1 for part in plan.parts)


def test_one_unit_gets_all_when_bringing_two_together_costs_more_than_it_saves():
    units = [BLAS, OPENCL]
    split = optimize(gemm_problem(256, 256, 256), units)
    assert len(split.parts) == 2
    alone = adapt(split, units, together_s=1e-3)
    assert alone.units == ("cpu:0/blas",)
    assert [chunk.count for chunk in alone.parts[0].chunks] == [256]
    assert alone.predicted_s == pytest.approx(BLAS.compute.predict(alone.problem.features(256)))
    assert len(adapt(split, units, together_s=1e-6).parts) == 2


def test_what_everybody_reads_is_cut_when_it_does_not_fit_and_rows_stream_past_when_it_does():
    link = LinkModel("pcie", 1e-5, 1e10, 1e-5, 1e10)
    problem = gemm_problem(8192, 8192, 8192)  # 256 MiB each
    for memory, blocks in ((1 << 30, 1), (300 << 20, 1), (200 << 20, 2), (40 << 20, 9)):
        pieces = traffic(problem, replace(OPENCL, link=link, memory_nbytes=memory))
        assert pieces is not None
        assert pieces.blocks <= blocks + 1
        width = pieces.across / 8192
        used = problem.fixed_nbytes * width + 2 * pieces.rows * (
            problem.in_nbytes + problem.out_nbytes * width
        )
        assert used <= memory or pieces.rows == 8192
        assert pieces.rows % 64 == 0
    assert traffic(problem, replace(OPENCL, link=link, memory_nbytes=1 << 20)) is None


def test_a_repeated_shape_has_the_same_plan_until_units_turn_out_otherwise():
    planner = Planner([BLAS, OPENCL])
    problem = gemm_problem(2048, 2048, 2048)
    plan = planner.plan(problem)
    assert planner.plan(gemm_problem(2048, 2048, 2048)) is plan
    for _ in range(8):
        for part in plan.parts:
            planner.observe(part.unit, problem.features(part.count), part.compute_s * 1.001)
    assert planner.plan(problem) is plan
    part = next(part for part in plan.parts if part.unit == "cpu:0/blas")
    for _ in range(10):
        planner.observe(part.unit, problem.features(part.count), part.compute_s * 1.3)
    slower = planner.plan(problem)
    assert slower is not plan
    assert next(its for its in slower.parts if its.unit == part.unit).count < part.count
    assert next(unit for unit in planner.units if unit.id == part.unit).compute.places


def test_the_better_axis_is_chosen_and_units_can_be_left_out():
    link = LinkModel("pcie", 1e-5, 1e9, 1e-5, 1e9)
    units = [BLAS, replace(OPENCL, compute=constant_rate(1e12), link=link)]
    wide = [gemm_problem(64, 16384, 4096, by=by) for by in ("rows", "columns")]
    assert Planner(units).plan(wide).problem == wide[1]  # by rows everybody would read all of B
    assert Planner(units).plan(wide, only={"cpu:0/blas"}).units == ("cpu:0/blas",)
    assert Planner(units).plan(wide, loads={units[1].id: Load(ready_s=10.0)}).units == ("cpu:0/blas",)


def test_the_frontier_goes_from_the_fastest_to_the_thriftiest():
    units = [replace(BLAS, power=PowerModel(5, 100)), replace(OPENCL, power=PowerModel(5, 30))]
    problem = gemm_problem(2048, 2048, 2048)
    plans = pareto([problem], units)
    times, energies = [plan.predicted_s for plan in plans], [plan.energy_j for plan in plans]
    assert times == sorted(times)
    assert energies == sorted(energies, reverse=True)
    assert len(plans) >= 2
    assert times[0] == pytest.approx(Planner(units).plan(problem).predicted_s)
    assert energies[-1] == pytest.approx(Planner(units).plan(problem, Objective(0.0, 1.0)).energy_j)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: adapt(optimize(gemm_problem(99, 99, 99), [BLAS]), [OPENCL]),
        lambda: adapt(optimize(gemm_problem(99, 99, 99), [BLAS]), [BLAS], overhead=0),
        lambda: Planner([]),
        lambda: Planner([BLAS, BLAS]),
        lambda: Planner([BLAS]).plan(gemm_problem(9, 9, 9), only={"gpu:0"}),
        lambda: Planner([BLAS]).plan([]),
        lambda: Planner([BLAS]).observe("gpu:0", gemm_problem(9, 9, 9).features(1), 1.0),
        lambda: Planner([BLAS]).observe("cpu:0/blas", gemm_problem(9, 9, 9).features(1), 0.0),
        lambda: pareto([gemm_problem(9, 9, 9)], [BLAS]),
    ],
)
def test_what_makes_no_sense_is_refused(bad):
    with pytest.raises(InvalidRequest):
        bad()


def test_short_parts_are_not_cut_since_nobody_could_take_their_chunks_over():
    units = [BLAS, OPENCL]
    short = adapt(optimize(gemm_problem(1024, 1024, 1024), units), units, overhead=1, lead_s=5e-3)
    assert [len(part.chunks) for part in short.parts] == [1, 1]
    long = adapt(optimize(gemm_problem(8192, 4096, 4096), units), units, overhead=1, lead_s=5e-3)
    models = {unit.id: unit.compute for unit in units}
    for part in long.parts:
        assert len(part.chunks) > 2
        assert all(
            models[part.unit].predict(long.problem.features(chunk.count)) >= 10e-3 for chunk in part.chunks
        )


def test_a_part_is_predicted_to_take_what_its_chunks_take_and_handing_them_over():
    units = [BLAS, OPENCL]
    plan = adapt(optimize(gemm_problem(4096, 2048, 2048), units), units, overhead=0.5, handover_s=1e-3)
    models = {unit.id: unit.compute for unit in units}
    for part in plan.parts:
        chunks = sum(models[part.unit].predict(plan.problem.features(chunk.count)) for chunk in part.chunks)
        assert len(part.chunks) > 1
        assert part.compute_s == pytest.approx(chunks + 1e-3 * (len(part.chunks) - 1))
    assert plan.predicted_s == max(part.end_s for part in plan.parts)


def test_a_planner_plans_again_when_bringing_units_together_costs_otherwise():
    planner = Planner([BLAS, OPENCL], together_s=1e-4)
    problem = gemm_problem(1024, 1024, 1024)
    before = planner.plan(problem)
    planner.together_s = 1e-3
    assert planner.plan(problem).predicted_s == pytest.approx(before.predicted_s + 9e-4)
