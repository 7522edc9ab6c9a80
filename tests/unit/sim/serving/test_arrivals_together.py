"""Requests given to the engine together come to the same as one by one, under every policy."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, Request, ServedModel, ServingDevice
from polymux.perfmodel import tables
from polymux.policy.serving import registry
from polymux.sim.serving import Bursty, Load, Poisson, Scenario, ServingOutcome, simulate
from polymux.sim.serving.requests import RequestStream

MS = 1_000_000
GPU = ServingDevice(DeviceId("v100:0"), 100, (20, 40, 60, 80, 100), "v100")


def outcome(policy: str) -> ServingOutcome:
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
    return simulate(registry.load(policy), Scenario((GPU,), loads, 400 * MS, seed=5, noise=0.1))


@pytest.mark.parametrize("policy", registry.names())
def test_requests_given_together_come_to_the_same_as_one_by_one(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = outcome(policy)
    take = RequestStream.take
    given: list[int] = []

    def one_by_one(self: RequestStream, before_ns: int, *, together: bool) -> list[Request]:
        taken = take(self, before_ns, together=False)
        given.append(len(taken))
        return taken

    monkeypatch.setattr(RequestStream, "take", one_by_one)
    apart = outcome(policy)
    assert max(given) <= 2  # several only of those that come at the same nanosecond
    assert together.spans == apart.spans
    assert _ends(together) == _ends(apart)


def _ends(outcome: ServingOutcome) -> list[tuple[Any, ...]]:
    models = outcome.models.values()
    return [
        (m.offered, m.refused, m.answered, m.on_time, m.unfinished, m.latencies_ns.tolist()) for m in models
    ]
