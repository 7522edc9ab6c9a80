"""Requests given to the engine together come to the same as one by one, under every policy."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel import tables
from polymux.policy.serving import registry
from polymux.policy.serving.interface import SelectivePolicy, ServingPolicy
from polymux.sim.serving import Bursty, Load, Poisson, Scenario, ServingOutcome, simulate
from polymux.sim.serving.requests import RequestStream

MS = 1_000_000
GPU = ServingDevice(DeviceId("v100:0"), 100, (20, 40, 60, 80, 100), "v100")


def scenario() -> Scenario:
    loads = tuple(
        Load(
            ServedModel(
                ModelName(name), slo_ms * MS, {"v100": tables.surface("v100", name)}, rate_per_s=rate
            ),
            arrivals,
        )
        for name, slo_ms, rate, arrivals in (
            ("mobilenet", 25, 900.0, Poisson(900)),
            ("alexnet", 30, 900.0, Bursty((300, 3000), (0.08, 0.02))),
            ("resnet50", 60, 300.0, Poisson(300)),
        )
    )
    return Scenario((GPU,), loads, 400 * MS, seed=5, noise=0.1)


@pytest.mark.parametrize("policy", registry.names())
def test_requests_given_together_come_to_the_same_as_one_by_one(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = simulate(registry.load(policy), scenario())
    reach = RequestStream.reach
    given: list[int] = []

    def one_by_one(self: RequestStream, before_ns: int) -> int:
        end = reach(self, min(before_ns, self.next_ns + 1))
        given.append(end - self.at)
        return end

    monkeypatch.setattr(RequestStream, "reach", one_by_one)
    apart = simulate(registry.load(policy), scenario())
    assert max(given) <= 2  # several only of those that come at the same nanosecond
    assert together.spans == apart.spans
    assert _ends(together) == _ends(apart)


class AskedAlways:
    """A policy that is asked at every arrival, whatever it awaits."""

    def __init__(self, policy: ServingPolicy) -> None:
        self.admit, self.decide = policy.admit, policy.decide

    @classmethod
    def make(cls, option: str) -> AskedAlways:
        return cls(registry.load(option))


@pytest.mark.parametrize("policy", [name for name in registry.names() if name != "spacetime"])
def test_a_policy_misses_nothing_by_not_being_asked_at_every_arrival(policy: str) -> None:
    """Except spacetime, which would pull more batches forward: it waits until there are enough requests."""
    assert isinstance(registry.load(policy), SelectivePolicy) or policy == "unscheduled"
    selective, always = (
        simulate(made, scenario()) for made in (registry.load(policy), AskedAlways.make(policy))
    )
    assert selective.spans == always.spans
    assert _ends(selective) == _ends(always)


def _ends(outcome: ServingOutcome) -> list[tuple[Any, ...]]:
    models = outcome.models.values()
    return [
        (m.offered, m.refused, m.answered, m.on_time, m.unfinished, m.latencies_ns.tolist()) for m in models
    ]
