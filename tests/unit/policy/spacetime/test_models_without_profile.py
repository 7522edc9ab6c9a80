"""Models without a profile: nearly as much of them is admitted as if they had one, and a slow spell is forgotten."""

from __future__ import annotations

import pytest

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.policy.serving.spacetime.policy import SpaceTime
from polymux.sim.serving import Load, Poisson, Scenario, Slowdown, simulate
from polymux.sim.serving.outcome import ServingOutcome

MS = 1_000_000
CORES = ServingDevice(
    DeviceId("cpu:0"), 2, (1, 2), "cpu", (frozenset({0, 1}), frozenset({0}), frozenset({1}))
)


def load(name: str, slo_ms: int, rate: float, knee: int, *, known: bool) -> Load:
    surface = {"cpu": FlatKneeSurface(knee, ((1, MS),))}
    model = ServedModel(ModelName(name), slo_ms * MS, surface if known else {}, max_batch=1)
    return Load(model, Poisson(rate), truth=surface)


def run(*loads: Load, slow: Slowdown | None = None, duration_ms: int = 3000) -> ServingOutcome:
    scenario = Scenario(
        (CORES,),
        loads,
        duration_ms * MS,
        noise=0.1,
        prepare_ns=20 * MS,
        slowdowns=() if slow is None else (slow,),
    )
    return simulate(SpaceTime(), scenario)


@pytest.mark.parametrize("knee", [1, 2])
@pytest.mark.parametrize("rate", [500, 3000])
def test_a_model_without_profile_beside_one_with_a_shorter_deadline_gets_what_it_would_with_one(
    rate: int, knee: int
) -> None:
    answered = {}
    for known in (False, True):
        outcome = run(load("long", 200, rate, knee, known=known), load("short", 40, 200, knee, known=True))
        answered[known] = outcome.models[ModelName("long")].on_time
        assert outcome.models[ModelName("short")].attainment > 0.98
    assert answered[False] > 0.9 * answered[True]


@pytest.mark.parametrize("factor", [10.0, 40.0, 200.0])
def test_a_model_without_profile_that_was_slow_for_a_second_is_served_again(factor: float) -> None:
    slow = Slowdown(ModelName("slow"), 500 * MS, 1500 * MS, factor)
    loads = (load("slow", 20, 200, 1, known=False), load("other", 20, 200, 1, known=False))
    outcome = run(*loads, slow=slow, duration_ms=6000)
    late = [span for span in outcome.spans if span.model == "slow" and 4000 * MS < span.end_ns < 6000 * MS]
    assert len(late) > 0.9 * 2 * 200
