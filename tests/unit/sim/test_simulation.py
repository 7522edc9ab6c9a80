"""Applications in virtual time: every task once and in order, and times that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.policy import registry
from polymux.sim.model import ModelApplication, ModelDevice, ModelQueue
from polymux.sim.outcome import Outcome
from polymux.sim.simulation import simulate

MS = 1_000_000


def device(index: int = 0, **values: Any) -> ModelDevice:
    return ModelDevice(DeviceId(f"cpu:{index}"), **values)


def application(name: str, *queues: ModelQueue, **values: int) -> ModelApplication:
    return ModelApplication(name, queues, **values)


def check_tasks(outcome: Outcome, applications: list[ModelApplication]) -> None:
    """Every task ran once, in its queue's order, one at a time on each stream."""
    for number, app in enumerate(applications, start=1):
        for index, queue in enumerate(app.queues):
            numbers = [s.number for s in outcome.spans if s.queue == f"{number}.{index}"]
            assert numbers == list(range(1, queue.tasks + 1))
    for what in ("queue", "stream"):
        last: dict[str, int] = {}
        for span in outcome.spans:
            key = getattr(span, what)
            assert span.start_ns >= last.get(key, 0), f"{what} {key} does two things at a time"
            last[key] = span.end_ns


def test_one_queue_takes_its_tasks_time_divided_by_the_speed() -> None:
    outcome = simulate("round_robin", [device(speed=2.0)], [application("a", ModelQueue(10, MS))])
    assert outcome.application("a").run_ns == 5 * MS


def test_data_is_copied_before_the_first_task() -> None:
    slow_bus = device(bandwidth_bytes_per_s=1e9)
    outcome = simulate("round_robin", [slow_bus], [application("a", ModelQueue(2, MS, read_nbytes=3 * MS))])
    assert outcome.application("a").run_ns == 5 * MS
    assert [span.copied_nbytes for span in outcome.spans] == [3 * MS, 0]


def test_two_queues_share_two_devices() -> None:
    queues = [ModelQueue(10, MS), ModelQueue(10, MS)]
    outcome = simulate("round_robin", [device(0), device(1)], [application("a", *queues)])
    assert outcome.application("a").run_ns == 10 * MS
    assert outcome.application("a").busy_ns == {"cpu:0": 10 * MS, "cpu:1": 10 * MS}


@pytest.mark.parametrize("ahead", [1, 8, 100])
def test_whoever_is_urgent_waits_for_the_tasks_in_flight_only(ahead: int) -> None:
    low = application("low", ModelQueue(1000, MS))
    high = application("high", ModelQueue(10, MS), arrives_ns=500 * MS + 1, priority=1)
    outcome = simulate("round_robin", [device(launch_ahead=ahead)], [low, high])
    waited = outcome.application("high").run_ns or 0
    assert (ahead - 1) * MS < waited - 10 * MS <= ahead * MS
    check_tasks(outcome, [low, high])


def test_sessions_of_one_priority_get_device_time_by_weight() -> None:
    apps = [
        application("one", ModelQueue(600, MS)),
        application("three", ModelQueue(600, MS), ModelQueue(600, MS), weight=300),
    ]
    outcome = simulate("weighted_fair", [device()], apps)
    measured = [
        s for s in outcome.spans if 500 * MS <= s.start_ns < 1000 * MS
    ]  # it has seen their load by then
    assert 115 <= sum(s.queue == "1.0" for s in measured) <= 135
    check_tasks(outcome, apps)


def test_the_same_model_has_the_same_outcome() -> None:
    apps = [
        application("a", ModelQueue(50, 7919, 1000, 1000), ModelQueue(20, 104729)),
        application("b", ModelQueue(30, 15485, 500, 9000), arrives_ns=100_000, priority=3),
    ]
    devices = [device(0, bandwidth_bytes_per_s=1e8), device(1, bandwidth_bytes_per_s=1e8, speed=1.7)]
    assert simulate("elastic", devices, apps).spans == simulate("elastic", devices, apps).spans


def test_the_elastic_policy_gives_whoever_is_urgent_a_device_and_takes_it_back() -> None:
    low = application("low", ModelQueue(2000, MS, written_nbytes=10**6), ModelQueue(2000, MS))
    high = application("high", ModelQueue(500, MS), arrives_ns=1000 * MS, priority=1)
    outcome = simulate("elastic", [device(0, launch_ahead=8), device(1, launch_ahead=8)], [low, high])
    assert (outcome.application("high").run_ns or 0) <= (500 + 8) * MS
    assert set(outcome.application("low").busy_ns) == {"cpu:0", "cpu:1"}
    assert (outcome.application("low").run_ns or 0) < (4000 + 500) * MS / 2 * 1.05
    check_tasks(outcome, [low, high])


@pytest.mark.parametrize("policy", ["elastic", "weighted_fair"])
@pytest.mark.parametrize("ahead", [1, 8, 600])
@pytest.mark.parametrize("read_nbytes", [0, 300 * MS])
def test_queues_on_their_way_count_where_they_go_so_that_the_next_look_moves_nobody_after_them(
    policy: str, ahead: int, read_nbytes: int
) -> None:
    machine = [device(i, launch_ahead=ahead, bandwidth_bytes_per_s=6e9) for i in range(2)]
    early = application("early", *[ModelQueue(3000, MS, read_nbytes, 50 * MS)] * 2)
    late = application("late", ModelQueue(800, MS, read_nbytes), arrives_ns=700 * MS, priority=1)
    outcome = simulate(policy, machine, [early, late])
    assert sum(app.migrations for app in outcome.applications) <= 6
    check_tasks(outcome, [early, late])


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: device(speed=0.0), "more than 0"),
        (lambda: device(launch_ahead=0), "more than 0"),
        (lambda: ModelQueue(-1, 5), "tasks is -1"),
        (lambda: ModelQueue(1, 0), "task_ns is 0"),
        (lambda: simulate("round_robin", [device(), device()], []), "given twice"),
        (lambda: simulate("round_robin", [device()], [application("a"), application("a")]), "given twice"),
        (lambda: simulate("fastest", [device()], []), "unknown"),
    ],
)
def test_models_that_cannot_be_are_refused_in_words(make: Any, remedy: str) -> None:
    with pytest.raises(InvalidRequest, match=remedy):
        make()


queues = st.builds(
    ModelQueue, st.integers(0, 30), st.integers(1, 10**6), st.integers(0, 10**5), st.integers(0, 10**5)
)
applications = st.lists(
    st.tuples(
        st.lists(queues, min_size=1, max_size=4),
        st.integers(0, 10**7),
        st.integers(-2, 2),
        st.integers(1, 500),
    ),
    min_size=1,
    max_size=4,
)
machines = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 2), st.integers(1, 9)), min_size=1, max_size=3
)


@pytest.mark.parametrize("policy", registry.names())
@given(apps=applications, devices=machines)
@settings(max_examples=60, deadline=None)
def test_no_task_is_lost_or_run_twice_or_out_of_order(
    policy: str, apps: list[Any], devices: list[Any]
) -> None:
    model = [
        application(f"app{i}", *made, arrives_ns=arrives, priority=priority, weight=weight)
        for i, (made, arrives, priority, weight) in enumerate(apps)
    ]
    machine = [
        device(i, speed=speed, streams=streams, launch_ahead=ahead, bandwidth_bytes_per_s=1e9)
        for i, (speed, streams, ahead) in enumerate(devices)
    ]
    outcome = simulate(policy, machine, model)
    assert not any(app.refused for app in outcome.applications)
    assert all(app.ended_ns is not None for app in outcome.applications)
    check_tasks(outcome, model)
