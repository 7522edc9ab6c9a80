"""A recording of the engine of requests gives the same decisions again, or says where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import ServingDecision
from polymux.core.serving.event import ModelAdded, ModelRemoved, ServingDeviceLost, ServingEvent
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel import tables
from polymux.perfmodel.surface import TableSurface
from polymux.policy.serving import registry
from polymux.sched.recording import REQUESTS, Step, write_step
from polymux.sched.replay import Replay, replay
from polymux.sim.serving import Load, Poisson, Scenario, simulate

MS = 1_000_000
POLICIES = registry.names()


def scenario(blocks: bool) -> Scenario:
    """Three models in overload on two devices, one of which is lost; a model changes its SLO, another is removed."""
    kinds = ("v100", "cpu")
    flat = {"v100": tables.flat_knee("v100", "mobilenet")}
    small = {kinds[1]: TableSurface((1, 2), (1, 4), ((4 * MS, 9 * MS), (2 * MS, 5 * MS)))}
    loads = (
        Load(ServedModel(ModelName("mobilenet"), 25 * MS, flat | small, rate_per_s=400.0), Poisson(400)),
        Load(
            ServedModel(ModelName("resnet"), 60 * MS, {"v100": tables.surface("v100", "resnet50")}),
            Poisson(300),
        ),
        Load(ServedModel(ModelName("other"), 80 * MS, small, weight=300, priority=1), Poisson(50), items=2),
    )
    parts = tuple(frozenset(units) for units in ({0, 1}, {0}, {1})) if blocks else ()
    devices = (
        ServingDevice(DeviceId("v100:0"), 100, (20, 40, 100), "v100"),
        ServingDevice(DeviceId("cpu:0"), 2, (1, 2), "cpu", parts),
    )
    events: tuple[tuple[int, ServingEvent], ...] = (
        (150 * MS, ModelAdded(replace(loads[0].model, slo_ns=30 * MS))),
        (250 * MS, ModelRemoved(ModelName("other"))),
        (300 * MS, ServingDeviceLost(DeviceId("cpu:0"), "driver reset")),
    )
    return Scenario(devices, loads, 400 * MS, seed=3, noise=0.2, events=events, prepare_ns=MS)


def day(policy: str, blocks: bool = True) -> list[str]:
    lines = [REQUESTS.write_header(policy) + "\n"]

    def record(event: ServingEvent, now: int, decisions: Sequence[ServingDecision]) -> None:
        lines.append(write_step(Step(now, event, tuple(decisions))) + "\n")

    simulate(registry.load(policy), scenario(blocks), record)
    return lines


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_recorded_simulation_replays_to_the_same_decisions(policy: str, blocks: bool) -> None:
    lines = day(policy, blocks)
    assert replay(lines) == Replay(policy, steps=len(lines) - 1)
    assert len(lines) > 100
    assert all(write_step(REQUESTS.read_step(line)) + "\n" == line for line in lines[1:])


@pytest.mark.parametrize("policy", POLICIES)
def test_two_simulations_of_a_scenario_record_the_same_lines(policy: str) -> None:
    assert day(policy) == day(policy)


def test_a_decision_that_differs_is_found_at_its_line() -> None:
    lines = day("unscheduled")
    number = next(i for i in range(40, len(lines)) if REQUESTS.read_step(lines[i]).decisions)
    lines[number] = write_step(replace(REQUESTS.read_step(lines[number]), decisions=())) + "\n"
    found = replay(lines)
    assert found.steps == number - 1
    assert found.difference is not None
    assert found.difference.line == number + 1
    assert "Dispatch" in str(found.difference)


def test_a_last_line_that_breaks_off_is_left_out_and_any_other_is_refused() -> None:
    lines = day("unscheduled")
    assert replay([*lines[:-1], lines[-1][:-10]]).truncated
    with pytest.raises(InvalidRequest, match="line 6: "):
        replay([*lines[:5], lines[5][:-10] + "\n", *lines[6:]])


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("", "empty"),
        ("hello\n", "no JSON"),
        ('{"polymux_other_recording":1,"policy":"elastic"}\n', "not the first line"),
        ('{"polymux_serving_recording":99,"policy":"unscheduled"}\n', "version 99"),
        ('{"polymux_serving_recording":1,"policy":"fifo"}\n', "'fifo' is unknown"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(header: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        replay([header] if header else [])


@dataclass(frozen=True, slots=True)
class _Own:
    max_batch: int = 4

    def latency_ns(self, units: int, batch: int) -> int:
        return 1


@pytest.mark.parametrize("change", [{"items": "two"}, {"unknown": 1}, {"id": 1.5}])
def test_a_field_that_cannot_be_is_refused_by_name(change: dict[str, Any]) -> None:
    request = {"id": 1, "model": "a", "arrival_ns": 0, "deadline_ns": 1, "items": 1} | change
    line = str({"at_ns": 0, "event": {"type": "RequestsArrived", "requests": [request]}, "decisions": []})
    with pytest.raises(InvalidRequest, match=next(iter(change))):
        REQUESTS.read_step(line.replace("'", '"'))


def test_a_surface_of_an_unknown_class_cannot_be_recorded() -> None:
    event = ModelAdded(ServedModel(ModelName("a"), MS, {"v100": _Own()}))
    with pytest.raises(InvalidRequest, match="class _Own cannot be recorded; give one of TableSurface"):
        write_step(Step(0, event))
