"""Served models in virtual time: every request is answered once, and times that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polymux.core.decision import WakeAt
from polymux.core.errors import BadDecision, InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import PolicyDecision, PrepareInstance
from polymux.core.serving.event import (
    InstanceFailed,
    InstanceReady,
    RequestsArrived,
    ServingDeviceAdded,
    ServingDeviceLost,
    ServingEvent,
    ServingTick,
)
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.core.serving.view import ServingView
from polymux.perfmodel.energy import PowerModel
from polymux.perfmodel.interference import NO_INTERFERENCE, Interference
from polymux.perfmodel.surface import TableSurface
from polymux.policy.serving import registry
from polymux.policy.serving.unscheduled import Unscheduled
from polymux.sim.serving import (
    Arrivals,
    Bursty,
    ClosedLoop,
    Counts,
    Load,
    Poisson,
    Scenario,
    ServingOutcome,
    Slowdown,
    Timestamps,
    Uniform,
    simulate,
    virtual_driver,
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


def test_a_device_that_comes_back_serves_again() -> None:
    lost = (5 * MS, ServingDeviceLost(GPU.id, "reset"))
    outcome = run(load("a", Timestamps([0, 20 * MS])), events=(lost, (50 * MS, ServingDeviceAdded(GPU))))
    model = outcome.models[ModelName("a")]
    assert (model.failed, model.latencies_ns.tolist()) == (1, [40 * MS])
    with pytest.raises(InvalidRequest, match="only those of the scenario"):
        run(load("a", Poisson(1)), events=((1, ServingDeviceAdded(replace(GPU, id=DeviceId("gpu:1")))),))


def test_energy_is_idle_power_and_what_use_adds() -> None:
    outcome = run(load("a", ClosedLoop(1)), power={"gpu": PowerModel(50, 250)})
    assert outcome.energy_j == pytest.approx(250)
    assert run(load("a", ClosedLoop(1))).energy_j is None


def test_device_time_is_fair_when_all_have_the_same() -> None:
    assert run(load("a", ClosedLoop(1)), load("b", ClosedLoop(1))).jain == pytest.approx(1.0)
    assert run(load("a", ClosedLoop(1)), load("b", Timestamps([0]))).jain == pytest.approx(0.51, abs=0.02)


def test_models_beside_each_other_slow_down_for_as_long_as_they_run_together() -> None:
    """At 0 both start on half a device, each takes twice as long; one is alone again when the other has ended."""
    half = ServingDevice(DeviceId("gpu:0"), 100, (50,), "gpu")
    short = TableSurface((50,), (1,), ((5 * MS,),))
    loads = (
        load("long", Timestamps([0])),
        Load(ServedModel(ModelName("short"), 100 * MS, {"gpu": short}), Timestamps([0])),
    )
    disturbed = Interference({"long": 2.0, "short": 2.0}, {"long": 1.0, "short": 1.0})
    scenario = Scenario((half,), loads, 10**9, interference=disturbed)
    outcome = simulate(registry.load("unscheduled"), scenario)
    assert [(span.model, span.end_ns) for span in outcome.spans] == [("short", 10 * MS), ("long", 15 * MS)]
    apart = simulate(registry.load("unscheduled"), replace(scenario, interference=NO_INTERFERENCE))
    assert [(span.model, span.end_ns) for span in apart.spans] == [("short", 5 * MS), ("long", 10 * MS)]


def test_models_that_do_not_fit_into_the_memory_of_a_device_are_told() -> None:
    small = ServingDevice(DeviceId("gpu:0"), 100, (50, 100), "gpu", memory_nbytes=100)
    models = [ServedModel(ModelName(name), MS, {"gpu": FLAT}, memory_nbytes=60) for name in "ab"]
    loads = tuple(Load(model, Poisson(1)) for model in models)
    simulate(registry.load("unscheduled"), Scenario((small,), loads[:1], 10**9))
    with pytest.raises(InvalidRequest, match="model b: its weights take 60 bytes, gpu:0 has 40 bytes free"):
        simulate(registry.load("unscheduled"), Scenario((small,), loads, 10**9))


class _Scripted(Unscheduled):
    """Asks for what it is told, once."""

    def __init__(self, *decisions: PolicyDecision) -> None:
        self.left = list(decisions)
        self.events: list[tuple[int, ServingEvent]] = []

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        step = (now, event)  # it is asked again after each start
        if isinstance(event, InstanceReady | InstanceFailed | ServingTick) and step not in self.events:
            self.events.append(step)
        left, self.left = self.left, []
        if left and isinstance(event, RequestsArrived):
            return left
        self.left = left
        return super().decide(view, event, now)


def test_a_prepared_instance_is_ready_after_its_time_if_it_fits() -> None:
    small = ServingDevice(DeviceId("gpu:0"), 100, (50, 100), "gpu", memory_nbytes=100)
    loads = tuple(
        Load(
            ServedModel(ModelName(name), 100 * MS, {"gpu": FLAT}, memory_nbytes=60),
            Timestamps([0]),
            ready=ready,
        )
        for name, ready in (("a", {small.id: (50,)}), ("b", {}))
    )
    policy = _Scripted(
        PrepareInstance(ModelName("a"), small.id, 100), PrepareInstance(ModelName("b"), small.id, 50)
    )
    outcome = simulate(policy, Scenario((small,), loads, 10**9, prepare_ns=3 * MS))
    (ready_ns, ready), (_, failed) = policy.events[1:]  # after the instance that was there from the beginning
    assert (ready_ns, ready) == (3 * MS, InstanceReady(ModelName("a"), small.id, 100))
    assert isinstance(failed, InstanceFailed)
    assert "60 bytes" in failed.problem
    assert outcome.models[ModelName("a")].answered == 1
    assert outcome.stalled == 1


class _Idle(Unscheduled):
    """Wakes up again and again, and does nothing."""

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        return [WakeAt(now)]


def test_a_policy_that_is_woken_without_end_and_does_nothing_is_an_error_not_a_hang() -> None:
    with pytest.raises(BadDecision, match="in a row and did nothing"):
        simulate(_Idle(), Scenario((GPU,), (load("a", Timestamps([0])),), 10**9))


def test_a_burst_of_a_hundred_thousand_requests_is_carried() -> None:
    outcome = run(load("a", Timestamps(np.zeros(100_000, np.int64))), drain_ns=0)
    model = outcome.models[ModelName("a")]
    assert model.offered == 100_000
    assert model.answered + model.unfinished == 100_000


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"seconds": 0.0}, "duration 0 ns"),
        ({"warmup_ns": 10**9}, "warm-up"),
        ({"seed": -1}, "seed is -1"),
        ({"noise": -0.5}, "noise is -0.5"),
        ({"prepare_ns": -1}, "prepare_ns is -1"),
    ],
)
def test_a_scenario_that_cannot_be_is_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        run(load("a", Poisson(1)), **values)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Poisson(-1),
        lambda: Uniform(float("inf")),
        lambda: Bursty((1,), (1, 2)),
        lambda: Bursty((1,), (0,)),
        lambda: Bursty((), ()),
        lambda: Timestamps([]),
        lambda: Timestamps([2, 1]),
        lambda: Timestamps([-1]),
        lambda: Counts([]),
        lambda: Counts([-1]),
        lambda: ClosedLoop(0),
        lambda: Slowdown(ModelName("a"), 2, 1, 2.0),
        lambda: Slowdown(ModelName("a"), 0, 1, 0.0),
        lambda: Load(ServedModel(ModelName("a"), 1), Poisson(1), items=0),
        lambda: Scenario((), (load("a", Poisson(1)),), 1),
        lambda: Scenario((GPU,), (load("a", Poisson(1e9)), load("b", Uniform(1e9))), 1000 * 10**9),
        lambda: Scenario((GPU,), (load("a", Poisson(1)),) * 2, 1),
    ],
)
def test_values_that_cannot_be_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest):
        wrong()


def test_more_requests_than_are_simulated_are_refused_with_the_estimate_and_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match=r"about 1e\+08 requests in 1e\+06 s; at most .*--duration"):
        Scenario((GPU,), (load("a", Poisson(100)),), 10**15)


def test_a_closed_loop_ends_at_the_most_requests_that_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_driver, "MOST_REQUESTS", 50)
    assert run(load("a", ClosedLoop(2)), seconds=0.01).offered < 50
    with pytest.raises(InvalidRequest, match="more than 50 requests by .* model a's.*longer think_s"):
        run(load("a", ClosedLoop(8)), seconds=1000)
