"""D-STACK: what follows from the paper's rules, and what a scheduler must not do."""

from __future__ import annotations

from itertools import pairwise

import pytest

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.perfmodel.surface import TableSurface
from polymux.policy.serving.registry import load
from polymux.sim.serving import ClosedLoop, Load, Poisson, Scenario, Uniform, simulate
from tests.unit.policy.serving.backlog import ALEXNET, CONVNETS, MOBILENET, MS, RESNET50, VGG19, held, run

RELAXED = (
    ("mobilenet", 20, 10.0, 50), ("alexnet", 30, 8.0, 50), ("resnet50", 40, 28.0, 100), VGG19,
)  # fmt: skip


def test_the_first_pass_runs_every_model_exactly_once_within_its_slo():
    outcome = run("dstack=deadlines", (ALEXNET, RESNET50, VGG19))
    assert held(outcome) == pytest.approx({"alexnet": 0.32, "resnet50": 0.56, "vgg19": 0.55}, rel=0.03)
    starts = [span.start_ns for span in outcome.spans if span.model == "resnet50"]
    windows = [start // 50_000_000 for start in starts]
    assert windows == list(range(windows[0], windows[0] + len(windows)))


def test_both_passes_use_what_the_facts_say():
    outcome = run("dstack", (ALEXNET, RESNET50, VGG19))
    assert outcome.utilisation == pytest.approx(0.79, rel=0.03)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_least_device_time_comes_to_the_optimum_of_the_linear_programme(noise):
    convnets = run("dstack", CONVNETS, noise=noise)
    assert held(convnets) == pytest.approx({"a": 2 / 3, "b": 2 / 3, "c": 2 / 3}, rel=0.03)
    four = held(run("dstack", RELAXED, seconds=10, noise=noise))
    assert four == pytest.approx(dict.fromkeys(four, 2 / 3), rel=0.05 if noise else 0.03)


@pytest.mark.parametrize("models", [(ALEXNET, RESNET50, VGG19), (MOBILENET, ALEXNET, RESNET50, VGG19)])
def test_every_model_runs_in_each_of_its_windows_while_the_rest_is_divided(models):
    outcome = run("dstack", models, seconds=10)
    for name, _, _, slo in models:
        starts = sorted(span.start_ns for span in outcome.spans if span.model == name)
        gaps = [later - earlier for earlier, later in pairwise(starts)]
        assert max(gaps) < 2 * slo * 1_000_000


def test_the_first_pass_alone_never_places_the_case_in_which_earliest_fit_fails():
    tight = (("mobilenet", 25, 10.0, 25), ALEXNET, RESNET50, VGG19)
    assert held(run("dstack=deadlines", tight))["vgg19"] == 0
    assert held(run("dstack", tight))["vgg19"] > 0.5


def test_a_pool_of_devices_is_used_whole():
    one = run("dstack", CONVNETS)
    four = run("dstack", CONVNETS, devices=4)
    assert four.throughput_per_s == pytest.approx(4 * one.throughput_per_s, rel=0.02)


@pytest.mark.parametrize(("knee", "found"), [(20, 20), (50, 50), (100, 95)])
def test_a_model_without_a_profile_finds_its_knee_while_it_is_served(knee, found):
    device = ServingDevice(DeviceId("gpu:0"), 100, tuple(range(5, 101, 5)), "gpu")
    known = ServedModel(ModelName("known"), 50 * MS, {"gpu": FlatKneeSurface(40, ((16, 10 * MS),))})
    unknown = ServedModel(ModelName("unknown"), 50 * MS, max_batch=16)
    truth = {"gpu": FlatKneeSurface(knee, ((1, 2 * MS), (16, 12 * MS)))}
    loads = (
        Load(known, Uniform(500.0)),
        Load(unknown, Uniform(200.0), truth=truth, ready={device.id: (30,)}),
    )
    scenario = Scenario((device,), loads, 4000 * MS, prepare_ns=30 * MS)
    outcome = simulate(load("dstack"), scenario)
    spans = [span for span in outcome.spans if span.model == "unknown"]
    assert spans[0].units == 30
    assert {span.units for span in spans[-20:]} == {found}
    gaps = [later.start_ns - earlier.end_ns for earlier, later in pairwise(spans)]
    assert max(gaps) < 30 * MS


@pytest.mark.parametrize("policy", ["dstack", "max_min_fair"])
def test_time_is_divided_by_weight_and_a_priority_comes_first(policy):
    device = ServingDevice(DeviceId("gpu:0"), 100, tuple(range(5, 101, 5)), "gpu")

    def parts(**changes):
        flat = {"gpu": FlatKneeSurface(60, ((16, 10 * MS),))}
        models = [
            ServedModel(ModelName("a"), 1000 * MS, flat),
            ServedModel(ModelName("b"), 1000 * MS, flat, **changes),
        ]
        loads = tuple(Load(model, ClosedLoop(64)) for model in models)
        return held(simulate(load(policy), Scenario((device,), loads, 20_000 * MS)))

    assert parts(weight=300) == pytest.approx({"a": 0.25, "b": 0.75}, abs=0.02)
    assert parts(priority=1)["b"] > 0.9


def test_a_slow_model_is_not_shut_out_by_jobs_that_are_planned_longer_than_they_will_be():
    cores = ServingDevice(DeviceId("cpu:0"), 2, (1, 2), "cpu", tuple(map(frozenset, ([0, 1], [0], [1]))))

    def linear(one_ms, both_ms, factor):
        rows = ((one_ms * MS, one_ms * factor * MS), (both_ms * MS, both_ms * factor * MS))
        return {"cpu": TableSurface((1, 2), (1, 8), rows)}

    models = [
        (ServedModel(ModelName("small"), 100 * MS, linear(8, 5, 6)), 48.0),
        (ServedModel(ModelName("smaller"), 100 * MS, linear(6, 4, 6)), 48.0),
        (ServedModel(ModelName("large"), 400 * MS, linear(70, 40, 7)), 9.6),
        (ServedModel(ModelName("text"), 50 * MS, linear(3, 2, 3)), 120.0),
    ]
    loads = tuple(Load(model, Poisson(rate)) for model, rate in models)
    outcome = simulate(load("dstack"), Scenario((cores,), loads, 10_000 * MS, warmup_ns=2000 * MS))
    assert {name: model.attainment > 0.98 for name, model in outcome.models.items()} == {
        "small": True, "smaller": True, "large": True, "text": True,
    }  # fmt: skip
