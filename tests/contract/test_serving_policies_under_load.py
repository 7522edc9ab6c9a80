"""Every policy for requests in the simulator: a burst, and a model that becomes slow."""

from __future__ import annotations

import pytest

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.policy.serving.registry import load, names
from polymux.sim.serving import Arrivals, Load, Poisson, Scenario, Slowdown, Timestamps, simulate

MS = 1_000_000
DEVICE = ServingDevice(DeviceId("gpu:0"), 100, tuple(range(10, 101, 10)), "gpu")
SURFACE = FlatKneeSurface(30, ((1, MS), (16, 5 * MS)))


def _load(name: str, arrivals: Arrivals) -> Load:
    return Load(ServedModel(ModelName(name), 50 * MS, {"gpu": SURFACE}), arrivals)


@pytest.mark.parametrize("policy", names())
def test_a_burst_of_a_hundred_thousand_requests_is_answered_refused_or_still_waits(policy: str) -> None:
    loads = (_load("burst", Timestamps([5 * MS] * 100_000)), _load("calm", Poisson(200)))
    scenario = Scenario((DEVICE,), loads, 1000 * MS, drain_ns=60_000 * MS, keep_spans=False)
    outcome = simulate(load(policy), scenario)
    assert outcome.stalled == 0
    for model in outcome.models.values():
        assert model.refused + model.answered + model.unfinished == model.offered
    assert outcome.models[ModelName("burst")].on_time > 0 or policy == "unscheduled"
    if policy not in ("unscheduled", "fixed_batch"):  # whose queue is one for all
        assert outcome.models[ModelName("calm")].attainment == 1


@pytest.mark.parametrize("policy", ["gslice", "max_throughput", "max_min_fair", "dstack", "spacetime"])
def test_a_model_that_takes_ten_times_its_profile_costs_the_others_no_deadline(policy: str) -> None:
    loads = tuple(_load(name, Poisson(500)) for name in "abc")
    slow = Slowdown(ModelName("a"), 500 * MS, 1500 * MS, 10.0)
    outcome = simulate(
        load(policy), Scenario((DEVICE,), loads, 3000 * MS, slowdowns=(slow,), keep_spans=False)
    )
    assert outcome.models[ModelName("b")].attainment == 1
    assert outcome.models[ModelName("c")].attainment == 1
    assert outcome.stalled == 0
