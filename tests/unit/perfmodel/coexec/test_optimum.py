"""Splits against the exact optimum."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.perfmodel.coexec.optimize import optimize
from polymux.perfmodel.coexec.problem import Objective, gemm_problem
from polymux.perfmodel.coexec.split import value_of
from tests.unit.perfmodel.coexec.machines import assert_whole, exact, random_machine


@given(seed=st.integers(0, 10_000), local=st.integers(0, 2), copying=st.integers(0, 3), buses=st.integers(1, 2),
       size=st.sampled_from([512, 2048, 8192]), weight=st.sampled_from([0.0, 0.0, 1e-3, 1e-2]))  # fmt: skip
@settings(max_examples=12, deadline=None, derandomize=True)
def test_the_closed_form_is_within_half_a_percent_of_the_exact_optimum(
    seed, local, copying, buses, size, weight
):
    rng = np.random.default_rng(seed)
    units = random_machine(rng, max(local, copying == 0), copying, buses)
    problem = gemm_problem(size, int(size * rng.uniform(0.3, 3)), size)
    split = optimize(problem, units, Objective(1.0, weight))
    assert_whole(split)
    assert (
        value_of(Objective(1.0, weight), split.makespan_s, split.energy_j)
        <= exact(problem, units, 1.0, weight) * 1.005
    )


@given(seed=st.integers(0, 10_000))
@settings(max_examples=3, deadline=None, derandomize=True)
def test_the_program_and_the_closed_form_agree_on_five_devices(seed):
    rng = np.random.default_rng(seed)
    units = random_machine(rng, 2, 3, 1)
    problem = gemm_problem(4096, 4096, 2048)
    closed, program = optimize(problem, units), optimize(problem, units, solver="milp")
    assert_whole(program)
    assert closed.makespan_s <= program.makespan_s * 1.005
    assert program.makespan_s <= closed.makespan_s * (1 + 1e-6)
