"""The policies that ours is compared with: each does what it is known for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.policy.serving.gslice import cut
from polymux.policy.serving.registry import load
from polymux.sim.serving import ClosedLoop, Load, Scenario, Uniform, simulate
from tests.unit.policy.serving.backlog import ALEXNET, CONVNETS, MOBILENET, MS, RESNET50, VGG19, held, run

TENTHS = ServingDevice(DeviceId("gpu:0"), 100, tuple(range(10, 101, 10)), "gpu")


def test_temporal_sharing_divides_the_time_by_slo_and_uses_the_whole_device():
    outcome = run("temporal", (ALEXNET, RESNET50, VGG19))
    assert held(outcome) == pytest.approx(
        {"alexnet": 25 / 175, "resnet50": 50 / 175, "vgg19": 100 / 175}, rel=0.03
    )
    assert {span.units for span in outcome.spans} == {100}
    ends = [0, *(span.end_ns for span in outcome.spans)]
    assert all(span.start_ns >= end for span, end in zip(outcome.spans, ends, strict=False)), "two at a time"


def test_temporal_sharing_takes_slices_of_any_length_even_far_shorter_than_a_batch():
    outcome = run("temporal=alexnet:1,resnet50:1,vgg19:0.02", (ALEXNET, RESNET50, VGG19), seconds=30)
    assert held(outcome) == pytest.approx({"alexnet": 0.495, "resnet50": 0.495, "vgg19": 0.0099}, rel=0.1)


def test_temporal_sharing_gives_a_model_alone_all_the_time():
    assert held(run("temporal", (ALEXNET,)))["alexnet"] == pytest.approx(1, rel=0.01)


def test_temporal_sharing_forms_no_batch_of_more_than_half_the_slo():
    surface = FlatKneeSurface(30, ((1, 2 * MS), (16, 17 * MS)))
    scenario = Scenario(
        (TENTHS,), (Load(ServedModel(ModelName("m"), 20 * MS, {"gpu": surface}), ClosedLoop(64)),), 1000 * MS
    )
    spans = simulate(load("temporal"), scenario).spans
    assert max(span.items for span in spans) == 9


def _uniform(policy: str, rate_per_s: float, slo_ms: int) -> list[int]:
    surface = FlatKneeSurface(30, ((1, 2 * MS), (16, 17 * MS)))
    model = ServedModel(ModelName("m"), slo_ms * MS, {"gpu": surface})
    outcome = simulate(load(policy), Scenario((TENTHS,), (Load(model, Uniform(rate_per_s)),), 2000 * MS))
    assert outcome.attainment == 1
    return [span.items for span in outcome.spans[:-1]]


def test_a_fixed_batch_waits_until_it_is_full_but_not_beyond_a_deadline():
    assert set(_uniform("fixed_batch", 500, slo_ms=100)) == {16}
    assert set(_uniform("fixed_batch=4", 500, slo_ms=100)) == {4}
    assert max(_uniform("fixed_batch", 100, slo_ms=100)) < 16


def test_max_throughput_leaves_out_who_is_worth_least():
    assert held(run("max_throughput", CONVNETS)) == pytest.approx({"a": 1, "b": 1, "c": 0}, abs=0.01)


def test_max_min_fair_gives_all_the_same_unit_time_as_far_as_they_can_use_it():
    outcome = run("max_min_fair", CONVNETS)
    unit_ns = [model.unit_ns for model in outcome.models.values()]
    assert max(unit_ns) / min(unit_ns) < 1.03
    four = run("max_min_fair", (MOBILENET, ALEXNET, RESNET50, VGG19))
    assert held(four)["mobilenet"] == pytest.approx(1, abs=0.01)  # it cannot use more
    assert held(four)["vgg19"] > 0.4


def test_max_min_fair_does_not_let_a_model_save_up_while_it_is_idle():
    surface = FlatKneeSurface(100, ((16, 10 * MS),))
    loads = tuple(
        Load(ServedModel(ModelName(name), 100 * MS, {"gpu": surface}), arrivals)
        for name, arrivals in (("busy", ClosedLoop(64)), ("late", ClosedLoop(64, think_ns=0)))
    )
    outcome = simulate(load("max_min_fair"), Scenario((TENTHS,), loads, 4000 * MS))
    times = [outcome.models[ModelName(name)].device_ns for name in ("busy", "late")]
    assert times[0] == pytest.approx(times[1], rel=0.02)


def test_gslice_runs_each_model_on_a_slice_of_its_own_all_the_time():
    outcome = run("gslice", CONVNETS)
    assert held(outcome) == pytest.approx({"a": 1, "b": 1, "c": 1}, rel=0.01)
    units = {span.model: span.units for span in outcome.spans}
    assert units == {"a": 25, "b": 30, "c": 45}  # the knees are 30, 40 and 60


def _cut(knees, device):
    return cut(knees, dict.fromkeys(knees, 0.1), device)


def test_slices_are_cut_down_when_the_knees_are_too_much_and_grow_when_something_is_left():
    names = [ModelName(name) for name in "abc"]
    too_much = {
        part.models[0]: part.units for part in _cut(dict(zip(names, (40, 80, 80), strict=True)), TENTHS)
    }
    assert too_much == {"a": 20, "b": 40, "c": 40}
    too_little = {
        part.models[0]: part.units for part in _cut(dict(zip(names, (10, 20, 20), strict=True)), TENTHS)
    }
    assert too_little == {"a": 20, "b": 40, "c": 40}


def test_more_models_than_shares_take_turns_on_a_slice():
    cores = ServingDevice(DeviceId("cpu:0"), 2, (1, 2), "cpu")
    loads = {ModelName(name): load for name, load in zip("abcde", (0.1, 0.5, 0.1, 0.2, 0.1), strict=True)}
    parts = cut(dict.fromkeys(loads, 1), loads, cores)
    assert [part.units for part in parts] == [1, 1]
    assert [sorted(part.models) for part in parts] == [["b"], ["a", "c", "d", "e"]]


@given(
    st.lists(st.integers(1, 100), max_size=12),
    st.lists(st.integers(1, 100), min_size=1, max_size=6, unique=True).map(sorted),
)
def test_slices_never_exceed_the_device_and_every_model_has_one(knees, shares):
    device = ServingDevice(DeviceId("gpu:0"), 100, tuple(shares), "gpu")
    parts = _cut({ModelName(str(index)): knee for index, knee in enumerate(knees)}, device)
    assert sum(part.units for part in parts) <= 100
    assert {part.units for part in parts} <= set(shares)
    assert sorted(name for part in parts for name in part.models) == sorted(map(str, range(len(knees))))


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("temporal=a", "'a' is no slice; give MODEL:PARTS"),
        ("temporal=a:0", "'a:0' is no slice"),
        ("temporal=a:x", "'a:x' is no slice"),
        ("temporal=a:nan", "'a:nan' is no slice"),
        ("fixed_batch=0", "the batch is '0'"),
        ("fixed_batch=many", "the batch is 'many'"),
        ("gslice=a", "'a' is no operating point"),
        ("max_throughput=a:b", "'a:b' is no operating point"),
        ("max_min_fair=1", "'1' is no operating point"),
        ("dstack=deadline", "'deadline' is no operating point"),
    ],
)
def test_a_bad_option_is_an_error_that_quotes_it(policy, problem):
    with pytest.raises(InvalidRequest, match=problem):
        load(policy)
