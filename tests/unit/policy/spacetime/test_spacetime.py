"""The policy `spacetime`: what it admits is answered by its deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from polymux.core.ids import DeviceId
from polymux.core.serving.decision import Dispatch, RejectRequest
from polymux.core.serving.event import (
    InstanceReady,
    ModelAdded,
    RequestsArrived,
    ServingDeviceAdded,
    ServingDeviceLost,
)
from polymux.core.serving.model import ModelName, Request, RequestId, ServedModel, ServingDevice
from polymux.perfmodel import tables
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.policy.serving.registry import load
from polymux.sched.serving.engine import ServingEngine
from polymux.sim.serving import ClosedLoop, Load, Poisson, Scenario, Slowdown, Timestamps, Uniform, simulate
from tests.unit.policy.spacetime.scenarios import MS, V100, admitted_on_time, play, v100_load, v100_mix


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("scale", [0.3, 0.8, 1.5])
def test_all_that_is_admitted_is_answered_on_time_when_batches_take_what_was_expected(
    scale: float, flat: bool
) -> None:
    outcome = play(v100_mix(scale, flat=flat))
    assert admitted_on_time(outcome) >= 0.999
    assert sum(model.answered for model in outcome.models.values()) > 500


def test_a_model_without_a_surface_is_served() -> None:
    known = v100_load("mobilenet", 100, 25)
    model = ServedModel(ModelName("new"), 100 * MS, max_batch=8)
    outcome = play((known, Load(model, Poisson(50), truth=known.surfaces, ready={V100.id: V100.shares})))
    new = outcome.models[ModelName("new")]
    assert new.on_time >= 0.95 * new.offered
    assert (
        outcome.models[ModelName("mobilenet")].on_time
        >= 0.99 * outcome.models[ModelName("mobilenet")].offered
    )


def test_a_refusal_says_when_a_request_could_be_met() -> None:
    outcome = play((v100_load("vgg19", 2000, 100, arrivals=Uniform),))
    model = outcome.models[ModelName("vgg19")]
    assert model.refused > 0.5 * model.offered
    assert model.on_time == model.answered


def test_when_there_is_too_much_to_do_what_is_admitted_is_on_time_and_no_less_than_without_deadlines() -> (
    None
):
    outcome = play(v100_mix(1.0, flat=True), 4.0)
    without = play(v100_mix(1.0, flat=True), 4.0, policy="max_throughput")
    assert admitted_on_time(outcome) >= 0.999
    assert outcome.goodput_per_s >= without.goodput_per_s
    assert min(model.attainment for model in outcome.models.values()) >= 0.3  # no model starves


def test_no_load_has_fewer_answers_on_time_than_with_d_stack() -> None:
    for scale in (0.2, 0.5):
        loads = v100_mix(scale)
        assert play(loads).goodput_per_s >= 0.999 * play(loads, policy="dstack").goodput_per_s


def test_work_for_which_earliest_fit_finds_no_plan_is_planned() -> None:
    surfaces = {  # knee in percent, time of a batch of 16 in ms, SLO in ms
        "mobilenet": (25, 10, 25),
        "alexnet": (30, 8, 25),
        "resnet50": (40, 28, 50),
        "vgg19": (50, 55, 100),
    }
    loads = []
    for name, (knee, time_ms, slo_ms) in surfaces.items():
        surface = FlatKneeSurface(knee, ((1, time_ms * MS), (16, time_ms * MS)))
        times = [index * slo_ms * MS for index in range(3000 // slo_ms) for _ in range(16)]
        loads.append(Load(ServedModel(ModelName(name), slo_ms * MS, {"v100": surface}), Timestamps(times)))
    device = ServingDevice(DeviceId("v100:0"), 100, tuple(range(5, 101, 5)), "v100")
    outcome = play(tuple(loads), 3.0, devices=(device,))
    assert outcome.attainment == 1.0


def test_three_models_that_do_not_fit_side_by_side_use_the_whole_device() -> None:
    loads = tuple(
        Load(ServedModel(ModelName(name), 100 * MS, {"v100": tables.flat_knee("v100", name)}), ClosedLoop(16))
        for name in ("convnet1", "convnet2", "convnet3")
    )
    assert play(loads, 4.0, warmup_ns=2000 * MS).utilisation >= 0.95


def test_device_time_is_divided_by_weight_when_there_is_not_enough() -> None:
    surface = {"v100": tables.surface("v100", "resnet50")}
    light, heavy = (
        Load(ServedModel(ModelName(name), 100 * MS, surface, weight), Poisson(2000))
        for name, weight in (("light", 100), ("heavy", 300))
    )
    models = play((light, heavy), 4.0, warmup_ns=1000 * MS).models
    ratio = models[ModelName("heavy")].unit_ns / models[ModelName("light")].unit_ns
    assert 2.0 < ratio < 4.5


def test_a_higher_priority_gets_all_that_it_demands() -> None:
    loads = (v100_load("resnet50", 700, 100, priority=1), v100_load("vgg19", 1000, 200))
    models = play(loads, 3.0, warmup_ns=1000 * MS).models
    assert models[ModelName("resnet50")].attainment >= 0.97
    assert models[ModelName("vgg19")].attainment < 0.9


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_margins_follow_how_much_batches_vary(noise: float) -> None:
    outcome = play(v100_mix(0.6), 4.0, noise=noise)
    assert admitted_on_time(outcome) >= 0.995
    assert outcome.attainment >= 0.5


def test_a_model_that_takes_ten_times_as_long_hardly_delays_the_others_and_is_served_again_afterwards() -> (
    None
):
    slow = Slowdown(ModelName("resnet50"), 1000 * MS, 2000 * MS, 10.0)
    outcome = play(v100_mix(0.3), 5.0, slowdowns=(slow,))
    for name in ("mobilenet", "vgg19", "alexnet"):
        assert outcome.models[ModelName(name)].attainment >= 0.9
    late = [span.end_ns for span in outcome.spans if span.model == "resnet50"]
    assert max(late) > 4500 * MS


def test_what_holds_up_the_whole_machine_for_a_moment_is_soon_forgotten() -> None:
    names = [ModelName(name) for name in ("mobilenet", "vgg19", "alexnet", "resnet50")]
    held_up = tuple(Slowdown(name, 1000 * MS, 1020 * MS, 100.0) for name in names)
    outcome = play(v100_mix(0.5), 5.0, slowdowns=held_up)
    for name in names:
        assert outcome.models[name].attainment >= 0.6  # up to a second of the five goes into those batches


def test_a_burst_of_100_000_requests_is_answered_or_refused_at_once() -> None:
    burst = Load(v100_load("mobilenet", 1, 50).model, Timestamps([500 * MS] * 100_000))
    outcome = play((burst, v100_load("resnet50", 100, 100)))
    model = outcome.models[ModelName("mobilenet")]
    assert model.refused > 90_000
    assert model.on_time == model.answered > 30
    assert outcome.models[ModelName("resnet50")].attainment >= 0.97


def test_a_lost_device_leaves_its_requests_to_the_others() -> None:
    other = replace(V100, id=DeviceId("v100:1"))
    events = ((700 * MS, ServingDeviceLost(other.id, "unplugged")),)
    outcome = play(v100_mix(0.4), devices=(V100, other), events=events)
    assert outcome.attainment >= 0.97
    assert outcome.stalled == 0


def test_requests_with_deadlines_of_their_own_are_met_or_refused_at_once() -> None:
    engine = ServingEngine(load("spacetime"))
    engine.handle(ServingDeviceAdded(V100), 0)
    model = v100_load("resnet50", 1, 100).model
    engine.handle(ModelAdded(model), 0)
    for units in V100.shares:
        engine.handle(InstanceReady(model.name, V100.id, units), 0)
    impossible = Request(RequestId(1), model.name, 0, 1 * MS)
    (refused,) = engine.handle(RequestsArrived([impossible]), 0)
    assert isinstance(refused, RejectRequest)
    assert "deadline" in refused.reason
    urgent = Request(RequestId(2), model.name, 0, 20 * MS)
    decisions = engine.handle(RequestsArrived([urgent]), 0)
    assert [type(decision) for decision in decisions] == [Dispatch]


def test_what_may_be_met_later_is_told() -> None:
    told = []

    def listen(_event: object, now: int, decisions: Sequence[object]) -> None:
        told.extend(d.retry_at_ns - now for d in decisions if isinstance(d, RejectRequest) and d.retry_at_ns)

    scenario = Scenario((V100,), (v100_load("vgg19", 2000, 100, arrivals=Uniform),), 1000 * MS)
    simulate(load("spacetime"), scenario, listen)
    assert len(told) > 100
    assert min(told) > 0
    assert max(told) < 500 * MS
