"""Thousands of requests with time to wait: they are admitted and answered, and no plan is made for each of them."""

from __future__ import annotations

import pytest

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.policy.serving.spacetime.placing import MOST_SLOTS
from polymux.policy.serving.spacetime.policy import SpaceTime
from polymux.sim.serving import Load, Poisson, Scenario, Timestamps, simulate
from polymux.sim.serving.outcome import ServingOutcome

MS = 1_000_000
SURFACE = FlatKneeSurface(1, ((1, MS),))
CORES = ServingDevice(
    DeviceId("cpu:0"), 2, (1, 2), "cpu", (frozenset({0, 1}), frozenset({0}), frozenset({1}))
)


class Watched(SpaceTime):
    """Remembers how many batches were planned at most."""

    most = 0

    def decide(self, *args):  # type: ignore[no-untyped-def]
        chosen = super().decide(*args)
        self.most = max([self.most, *(len(lane.slots) for lane in self._plan.lanes.values())])
        return chosen


def run(policy: SpaceTime, count: int, slo_ns: int) -> ServingOutcome:
    burst = ServedModel(ModelName("burst"), slo_ns, {"cpu": SURFACE}, max_batch=1)
    calm = ServedModel(ModelName("calm"), 100 * MS, {"cpu": SURFACE}, max_batch=1)
    loads = (Load(burst, Timestamps([5 * MS] * count)), Load(calm, Poisson(20)))
    return simulate(
        policy, Scenario((CORES,), loads, 3000 * MS, drain_ns=60_000 * MS, keep_spans=False, noise=0.1)
    )


def test_a_long_queue_with_time_to_wait_is_answered_whole() -> None:
    policy = Watched()
    outcome = run(policy, 2000, 60_000 * MS)
    assert policy.most <= MOST_SLOTS
    assert outcome.models[ModelName("burst")].on_time == 2000
    assert outcome.models[ModelName("calm")].attainment == 1


@pytest.mark.parametrize("slo_ms", [200, 500])
def test_of_a_queue_that_is_too_long_as_much_is_admitted_as_can_be_met(slo_ms: int) -> None:
    outcome = run(SpaceTime(), 2000, slo_ms * MS)
    burst = outcome.models[ModelName("burst")]
    assert burst.refused > 0
    assert burst.on_time >= 0.99 * burst.answered
    assert burst.on_time > slo_ms  # two cores do twice as many
    assert outcome.models[ModelName("calm")].attainment > 0.95
