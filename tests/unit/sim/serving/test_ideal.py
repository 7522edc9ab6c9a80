"""The ideal scheduler of kernels that can be stopped: a bound for every other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.sim.serving.ideal import IdealKernel, IdealModel, layered_model, simulate_ideal

MS = 1_000_000


def _flat(name, units, time_ns):
    return IdealModel(name, (IdealKernel(units, time_ns),))


def test_the_fullest_set_runs_and_whoever_does_not_fit_waits():
    outcome = simulate_ideal([_flat("a", 30, MS), _flat("b", 40, MS), _flat("c", 60, MS)], 100 * MS)
    assert outcome.utilisation == 1
    assert outcome.runs == {"a": 0, "b": 100, "c": 100}


def test_of_equally_full_sets_the_one_that_had_least_time_runs():
    outcome = simulate_ideal([_flat(name, 60, 10 * MS) for name in "abc"], 300 * MS)
    assert outcome.runs == {"a": pytest.approx(10), "b": pytest.approx(10), "c": pytest.approx(10)}
    assert outcome.utilisation == pytest.approx(0.6)


def test_kernels_are_stopped_at_the_end_of_a_slot_and_go_on_later():
    outcome = simulate_ideal([_flat("a", 60, 5 * MS), _flat("b", 60, 5 * MS)], 10 * MS)
    assert outcome.runs == {"a": 1, "b": 1}


def test_a_model_goes_on_within_a_slot_only_to_a_kernel_that_needs_no_more():
    falling = IdealModel("f", (IdealKernel(50, 50_000), IdealKernel(20, 50_000)))
    assert simulate_ideal([falling], 100_000).utilisation == pytest.approx(0.35)
    rising = IdealModel("r", (IdealKernel(20, 50_000), IdealKernel(50, 50_000)))
    assert simulate_ideal([rising], 200_000).utilisation == pytest.approx(0.225)


def test_the_kernels_of_a_layered_model_take_its_run_time_at_its_knee():
    model = layered_model("a", 30, 10 * MS, kernels=50)
    assert model.kernels[0].units == 59
    assert model.kernels[-1].units == 1
    at_knee = sum(kernel.duration_ns * max(1.0, 0.8 * kernel.units / 30 + 0.2) for kernel in model.kernels)
    assert at_knee == pytest.approx(10 * MS, rel=0.01)
    assert max(kernel.units for kernel in layered_model("b", 80, MS, kernels=7).kernels) == 100


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 100), st.integers(1, 300_000)), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_it_does_no_more_work_than_the_device_can(shapes):
    models = [
        IdealModel(str(index), tuple(IdealKernel(*kernel) for kernel in kernels))
        for index, kernels in enumerate(shapes)
    ]
    outcome = simulate_ideal(models, 5 * MS)
    assert 0 < outcome.utilisation <= 1
    for model in models:
        alone_ns = sum(kernel.duration_ns for kernel in model.kernels)
        assert outcome.runs[model.name] <= 5 * MS / alone_ns + 1


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        ([], "at least one model"),
        ([IdealModel("a", ())], "at least one kernel"),
        ([_flat("a", 101, MS)], "model a has a kernel of 101 units"),
        ([_flat("a", 0, MS)], "0 units"),
        ([_flat("a", 1, 0)], "for 0 ns"),
    ],
)
def test_what_cannot_run_is_an_error(models, problem):
    with pytest.raises(InvalidRequest, match=problem):
        simulate_ideal(models, MS)
