"""What counts as met, and the arithmetic behind it; demands of bursts and traces."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from polymux.core.errors import PolymuxError
from polymux.core.serving.model import ModelName
from polymux.planning import plan_check
from polymux.planning.demands import measured_dispersion
from polymux.planning.plan_check import binomial_tail, is_met
from polymux.planning.workload import parse_workload
from polymux.sim.serving.cluster import Pool
from polymux.sim.serving.outcome import ModelOutcome

WORKLOAD = {
    "simulation": {"duration_s": 1},
    "device": [{"kind": "gpu", "count": 2, "shares": [50, 100]}],
    "model": [
        {
            "name": "m", "slo_ms": 100, "rate_per_s": 100,
            "surface": [{"share": [50, 100], "batch": [1, 4], "latency_ms": [[6, 12], [4, 8]]}],
        }
    ],
}  # fmt: skip


def outcome(offered: int, late: int) -> ModelOutcome:
    return ModelOutcome(ModelName("m"), 1, 1.0, offered=offered, on_time=offered - late)


@given(st.integers(0, 60), st.integers(0, 400), st.floats(0.0001, 0.3))
def test_the_tail_is_that_of_the_binomial_distribution(least: int, trials: int, chance: float) -> None:
    assert binomial_tail(least, trials, chance) == pytest.approx(
        binom.sf(least - 1, trials, chance), abs=1e-9
    )


@pytest.mark.parametrize(
    ("least", "trials", "chance", "expected"),
    [(0, 5, 0.0, 1), (1, 5, 0.0, 0), (6, 5, 0.5, 0), (3, 5, 1.0, 1)],
)
def test_the_tail_at_its_ends(least: int, trials: int, chance: float, expected: float) -> None:
    assert binomial_tail(least, trials, chance) == expected


def test_of_many_requests_no_more_may_be_late_than_the_attainment_says() -> None:
    assert is_met(outcome(10_000, 100), 0.99)
    assert not is_met(outcome(10_000, 101), 0.99)


def test_of_few_requests_one_may_be_late_but_not_many() -> None:
    assert is_met(outcome(20, 1), 0.99)
    assert not is_met(outcome(20, 3), 0.99)
    assert is_met(outcome(0, 0), 0.99)


def test_dispersion_is_0_for_equal_distances_1_for_poisson_and_more_for_bursts() -> None:
    rng = np.random.default_rng(1)
    assert measured_dispersion(np.arange(0, 10**9, 10**5), 10**7) == pytest.approx(0, abs=0.01)
    assert measured_dispersion(np.sort(rng.integers(0, 10**9, 20_000)), 10**6) == pytest.approx(1, abs=0.2)
    bursts = np.sort(np.repeat(np.arange(0, 10**9, 5 * 10**7), 100))
    assert measured_dispersion(bursts, 10**7) > 20


def test_with_too_little_to_measure_arrivals_count_as_poisson() -> None:
    assert measured_dispersion(np.array([], np.int64), 10) == 1.0
    assert measured_dispersion(np.array([1, 2, 3]), 10) == 1.0


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_simulating_process_that_is_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_check, "_leave_interrupts", _kill_this_process)
    monkeypatch.setattr(plan_check.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(plan_check, "_WORTH_PROCESSES", 1)
    given = parse_workload("test.toml", WORKLOAD).scenario()
    pools = [Pool((device.id,), {ModelName("m"): 1.0}) for device in given.devices]
    with pytest.raises(PolymuxError, match="was killed, perhaps for want of memory"):
        plan_check.simulate_pools("unscheduled", given, pools)


def test_several_processes_find_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    given = parse_workload("test.toml", WORKLOAD).scenario()
    pools = [Pool((device.id,), {ModelName("m"): 1.0}) for device in given.devices]
    alone = plan_check.simulate_pools("unscheduled", given, pools)
    monkeypatch.setattr(plan_check.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(plan_check, "_WORTH_PROCESSES", 1)
    together = plan_check.simulate_pools("unscheduled", given, pools)
    assert together.keys() == alone.keys() == {0, 1}
    for index, outcome in alone.items():
        latencies = outcome.models[ModelName("m")].latencies_ns.tolist()
        assert together[index].models[ModelName("m")].latencies_ns.tolist() == latencies
