"""A recording replayed through a fresh engine gives the same decisions, or says where it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polymux.core.decision import Bind, Decision
from polymux.core.errors import BadDecision, InvalidRequest
from polymux.core.event import (
    DeviceLost,
    Event,
    HomePossible,
    KernelMissing,
    LoadReported,
    MigrateRequested,
    QueueClosed,
    StreamLoad,
)
from polymux.core.ids import DeviceId, KernelName, QueueId, StreamId
from polymux.core.snapshot import Snapshot
from polymux.policy.round_robin import RoundRobin
from polymux.sched.engine import Engine
from polymux.sched.recording import QUEUES, Step, write_step
from polymux.sched.replay import Replay, replay
from tests.contract.driver import POLICIES, Driver, added, opened


def day(policy: str) -> list[str]:
    """Record a day of a server: applications come and go, a device breaks, an operator moves things."""
    driver = Driver(policy)
    for device, streams in (("cpu:0", 2), ("cpu:1", 1), ("opencl:0", 1)):
        driver.send(added(device, streams))
    for session in range(1, 6):
        for index in range(4):
            driver.send(opened(f"{session}.{index}", pinned="cpu:1" if index == 3 else None))
        busy = {StreamId("cpu:0/0"): StreamLoad(session, 1000 * session, 2)}
        driver.send(LoadReported(busy))
        first = QueueId(f"{session}.0")
        driver.send(KernelMissing(first, KernelName("gemm"), (DeviceId("opencl:0"), DeviceId("cpu:1"))))
        driver.settle()
        for gain_ns in (None, 10, 200):
            driver.send(HomePossible(first, KernelName("saxpy"), 100, gain_ns))
        driver.send(MigrateRequested(QueueId(f"{session}.1"), DeviceId("cpu:1"), session))
        driver.settle()
        if session == 3:
            driver.send(DeviceLost(DeviceId("opencl:0"), "driver reset"))
            driver.settle()
        if session > 1:
            for index in range(4):
                driver.send(QueueClosed(QueueId(f"{session - 1}.{index}")))
    driver.settle()
    return [line + "\n" for line in driver.recorded]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_recording_replays_to_the_same_decisions(policy: str) -> None:
    lines = day(policy)
    assert replay(lines) == Replay(policy, steps=len(lines) - 1)
    assert len(lines) > 80


@pytest.mark.parametrize("policy", POLICIES)
def test_two_runs_of_the_same_events_record_the_same_lines(policy: str) -> None:
    assert day(policy) == day(policy)


@pytest.mark.parametrize("at", [5, 20, -1])
def test_a_recorded_decision_that_differs_is_found_at_its_line(at: int) -> None:
    lines = day("round_robin")
    number = at % len(lines)
    step = QUEUES.read_step(lines[number])
    lines[number] = (
        write_step(replace(step, decisions=(*step.decisions, Bind(QueueId("7.7"), StreamId("x/0"))))) + "\n"
    )
    found = replay(lines)
    assert found.steps == number - 1
    assert found.difference is not None
    assert found.difference.line == number + 1
    assert found.difference.replayed == step.decisions
    for part in (f"line {number + 1}", "recorded:", "replayed:", "7.7"):
        assert part in str(found.difference)


def test_a_policy_that_has_changed_since_is_found() -> None:
    class Reversed(RoundRobin):
        def choose(self, queue: Any, streams: Any, snapshot: Any) -> Any:
            return max(streams, key=lambda stream: stream.rank), "changed"

    found = replay(day("round_robin"), load=lambda _: Reversed())
    assert found.difference is not None


def test_a_policy_that_is_not_a_function_of_events_is_found() -> None:
    class Forgetful(RoundRobin):
        calls = 0

        def decide(self, snapshot: Snapshot, event: Event, now: int) -> list[Decision]:
            Forgetful.calls += 1  # state that outlives the engine
            return [replace(d, reason=f"call {self.calls}") for d in super().decide(snapshot, event, now)]

    lines = day("round_robin")
    first = replay(lines, load=lambda _: Forgetful()).difference
    second = replay(lines, load=lambda _: Forgetful()).difference
    assert first is not None
    assert first != second


def test_what_a_broken_policy_left_to_do_replays_too() -> None:
    class Broken(RoundRobin):
        def decide(self, snapshot: Snapshot, event: Event, now: int) -> list[Decision]:
            if isinstance(event, KernelMissing):
                raise ZeroDivisionError
            return super().decide(snapshot, event, now)

    engine = Engine(Broken())
    lines = [QUEUES.write_header("broken") + "\n"]
    missing = KernelMissing(QueueId("1.0"), KernelName("gemm"), ())
    for now, event in enumerate((added("cpu:0"), opened("1.0"), missing, opened("1.1"))):
        try:
            decisions = tuple(engine.handle(event, now))
        except BadDecision as bad:
            decisions = bad.decisions
        lines.append(write_step(Step(now, event, decisions)) + "\n")
    assert "FailHead" in lines[3]
    assert replay(lines, load=lambda _: Broken()) == Replay("broken", steps=4)


def test_a_last_line_that_breaks_off_is_left_out_and_said_so() -> None:
    lines = day("round_robin")
    lines[-1] = lines[-1][:20]
    assert replay(lines) == Replay("round_robin", steps=len(lines) - 2, truncated=True)


def test_a_broken_line_in_the_middle_is_refused_by_its_number() -> None:
    lines = day("round_robin")
    lines[10] = lines[10][:20] + "\n"
    with pytest.raises(InvalidRequest, match=r"^line 11: .*no JSON"):
        replay(lines)


def test_an_empty_recording_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the recording is empty"):
        replay([])


def test_a_recording_of_an_unknown_policy_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest, match="'psychic' is unknown"):
        replay(['{"polymux_recording": 2, "policy": "psychic"}\n'])


def test_a_recording_without_steps_replays() -> None:
    assert replay(day("round_robin")[:1]) == Replay("round_robin", steps=0)


def test_steps_keep_their_times() -> None:
    times = [QUEUES.read_step(line).at_ns for line in day("round_robin")[1:]]
    assert times == sorted(times)
    assert isinstance(QUEUES.read_step(day("round_robin")[1]), Step)
