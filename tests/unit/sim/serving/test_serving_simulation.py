"""Served models in virtual time: every request is answered once, and times that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polymux.core.ids import DeviceId
from polymux.core.serving.event import ServingDeviceLost
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel.surface import TableSurface
from polymux.policy.serving import registry
from polymux.sim.serving import (
    Arrivals,
    Bursty,
    ClosedLoop,
    Counts,
    Load,
    Poisson,
    Power,
    Scenario,
    ServingOutcome,
    Slowdown,
    Timestamps,
    Uniform,
    simulate,
)

MS = 1_000_000
GPU = ServingDevice(DeviceId("gpu:0"), 100, (25, 50, 100), "gpu")
FLAT = TableSurface((25,), (1, 8), ((10 * MS, 10 * MS),))
"""10 ms whatever the share and the batch."""


def load(name: str, arrivals: Arrivals, *, slo_ms: int = 100, **values: Any) -> Load:
    return Load(ServedModel(ModelName(name), slo_ms * MS, {"gpu": FLAT}), arrivals, **values)


def run(*loads: Load, seconds: float = 1.0, policy: str = "unscheduled", **values: Any) -> ServingOutcome:
    return simulate(registry.load(policy), Scenario((GPU,), loads, round(seconds * 1e9), **values))


def summary(outcome: ServingOutcome) -> list[tuple[Any, ...]]:
    return [
        (m.offered, m.refused, m.answered, m.on_time, m.failed, m.unfinished, m.latencies_ns.tolist())
        for m in outcome.models.values()
    ]


def test_requests_one_after_the_other_take_the_time_of_the_surface() -> None:
    outcome = run(load("a", Timestamps([0, 20 * MS, 40 * MS])))
    assert outcome.models[ModelName("a")].latencies_ns.tolist() == [10 * MS] * 3
    assert [(s.start_ns, s.end_ns, s.units) for s in outcome.spans] == [
        (0, 10 * MS, 100),
        (20 * MS, 30 * MS, 100),
        (40 * MS, 50 * MS, 100),
    ]
    assert outcome.utilisation == pytest.approx(0.03)


def test_requests_that_come_together_wait_for_each_other() -> None:
    model = run(load("a", Timestamps([0, 0, 0]), slo_ms=25)).models[ModelName("a")]
    assert model.latencies_ns.tolist() == [10 * MS, 20 * MS, 30 * MS]
    assert (model.on_time, model.late, model.attainment) == (2, 1, pytest.approx(2 / 3))
    assert [model.percentile_ns(p) for p in (0, 33, 34, 99.9)] == [10 * MS, 10 * MS, 20 * MS, 30 * MS]


def test_every_request_of_every_process_ends_in_exactly_one_way() -> None:
    loads = [
        load("uniform", Uniform(20)),
        load("poisson", Poisson(20)),
        load("bursty", Bursty((0, 200), (0.1, 0.1))),
        load("counts", Counts([3, 0, 40])),
        load("loop", ClosedLoop(3, 5 * MS)),
    ]
    outcome = run(*loads, seconds=3, drain_ns=0)
    for model in outcome.models.values():
        assert model.offered == model.refused + model.answered + model.failed + model.unfinished
        assert model.offered > 10
    assert sum(span.requests for span in outcome.spans) == sum(m.answered for m in outcome.models.values())
    assert outcome.models[ModelName("uniform")].offered == 60
    assert outcome.models[ModelName("counts")].offered == 43


def test_the_same_seed_gives_the_same_outcome_and_another_seed_another() -> None:
    loads = [load("a", Poisson(50)), load("b", ClosedLoop(2, MS)), load("c", Bursty((10, 90), (0.2, 0.1)))]
    first, again, other = (summary(run(*loads, seed=seed, noise=0.2)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_another_model_does_not_change_when_the_requests_of_a_model_arrive() -> None:
    alone = run(load("a", Poisson(50))).models[ModelName("a")]
    together = run(load("a", Poisson(50)), load("b", Poisson(10))).models[ModelName("a")]
    assert alone.offered == together.offered


def test_a_closed_loop_keeps_its_clients_busy() -> None:
    outcome = run(load("a", ClosedLoop(4)))
    assert outcome.throughput_per_s == pytest.approx(100, abs=1)
    assert outcome.utilisation == pytest.approx(1.0)


def test_requests_of_the_warm_up_are_not_counted() -> None:
    outcome = run(load("a", Timestamps([0, 600 * MS])), warmup_ns=500 * MS)
    model = outcome.models[ModelName("a")]
    assert (outcome.requests, model.offered, model.answered, model.batches) == (2, 1, 1, 1)
    assert model.goodput_per_s == 2.0


def test_a_model_that_slows_down_takes_longer_while_it_does() -> None:
    times = Timestamps([0, 100 * MS, 300 * MS])
    outcome = run(load("a", times), slowdowns=(Slowdown(ModelName("a"), 50 * MS, 200 * MS, 10.0),))
    assert outcome.models[ModelName("a")].latencies_ns.tolist() == [10 * MS, 10 * MS, 100 * MS]


def test_noise_keeps_the_mean() -> None:
    model = run(load("a", Uniform(10)), seconds=200, noise=0.3).models[ModelName("a")]
    assert float(np.mean(model.latencies_ns)) == pytest.approx(10 * MS, rel=0.03)


def test_a_lost_device_fails_its_batches_and_starts_no_more() -> None:
    lost = (105 * MS, ServingDeviceLost(GPU.id, "fell off"))
    outcome = run(load("a", Timestamps([0, 100 * MS, 200 * MS])), events=(lost,))
    model = outcome.models[ModelName("a")]
    assert (model.answered, model.failed, model.unfinished) == (1, 1, 1)
    assert outcome.spans[-1].end_ns == 105 * MS
    assert outcome.spans[-1].failed


def test_energy_is_idle_power_and_what_use_adds() -> None:
    outcome = run(load("a", ClosedLoop(1)), power={"gpu": Power(50, 250)})
    assert outcome.energy_j == pytest.approx(250)
    assert run(load("a", ClosedLoop(1))).energy_j is None


def test_device_time_is_fair_when_all_have_the_same() -> None:
    assert run(load("a", ClosedLoop(1)), load("b", ClosedLoop(1))).jain == pytest.approx(1.0)
    assert run(load("a", ClosedLoop(1)), load("b", Timestamps([0]))).jain == pytest.approx(0.51, abs=0.02)
