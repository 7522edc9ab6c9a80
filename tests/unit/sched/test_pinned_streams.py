"""Queues that are pinned to a stream, and streams that are a part of another one."""

from __future__ import annotations

import pytest

from polymux.core.decision import Bind, Decision, FailAll, FailHead, Migrate, Reject, Revoke
from polymux.core.device_spec import Share, StreamSpec, nested_streams
from polymux.core.errors import BadDecision
from polymux.core.event import (
    DeviceLost,
    DeviceWished,
    HeldHead,
    HomePossible,
    KernelMissing,
    MigrateRequested,
    QueueClosed,
    QueueReleased,
    Tick,
)
from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.core.status import TaskStatus
from polymux.sched.engine import Engine
from tests.contract.driver import Driver, added, opened
from tests.unit.sched.running import CPU, CPU1, GEMM, Q, answers

PARTS = (0, 1), (2, 3), (0,), (1,), (2,), (3,)


def nested(policy: str = "round_robin") -> Driver:
    """Start with a device of four units, all parts of it, and a device without parts."""
    driver = Driver(policy)
    driver.send(added("cpu:0", 1, *PARTS))
    driver.send(added("cpu:1"))
    return driver


@pytest.mark.parametrize(
    ("shares", "within"),
    [
        ([None, None], []),
        ([(0, 1), (2, 3)], []),
        ([None, (0, 1), (2, 3), (0,)], [1, 2, 3]),
        ([(0, 1, 2, 3), (3,)], [1]),
        ([(0, 1), (1, 2)], []),
    ],
)
def test_a_stream_is_a_part_when_another_one_of_its_device_has_all_its_units_and_more(
    shares: list[tuple[int, ...] | None], within: list[int]
) -> None:
    streams = [StreamSpec(StreamId(f"cpu:0/{i}"), CPU, Share(units)) for i, units in enumerate(shares)]
    assert nested_streams(streams, 4) == {f"cpu:0/{i}" for i in within}


@pytest.mark.parametrize("policy", ["round_robin", "elastic", "weighted_fair"])
def test_queues_without_a_pin_to_it_never_get_a_part_of_a_stream(policy: str) -> None:
    driver = nested(policy)
    for index in range(20):
        driver.send(opened(f"{index}.0", pinned="cpu:0" if index % 3 == 0 else None))
    assert set(driver.bound.values()) == {"cpu:0/0", "cpu:1/0"}


def test_a_queue_gets_the_stream_to_which_it_is_pinned_whatever_the_policy_says() -> None:
    driver = nested("pinned=cpu:1")
    for index in range(7):
        (decision,) = driver.send(opened(f"1.{index}", pinned=f"cpu:0/{index}", weight=200))
        assert isinstance(decision, Bind)
        assert (decision.stream, decision.weight) == (f"cpu:0/{index}", 200)


@pytest.mark.parametrize("stream", ["cpu:0/7", "cpu:2/0", "cpu:0/x"])
def test_a_queue_that_is_pinned_to_no_stream_is_refused_with_the_remedy(stream: str) -> None:
    (decision,) = nested().send(opened("1.0", pinned=stream))
    assert isinstance(decision, Reject)
    assert "cannot be pinned" in decision.message
    assert "Pin it to one that works" in decision.message


def test_a_queue_that_is_let_go_of_comes_back_to_its_stream() -> None:
    driver = nested()
    driver.send(opened("1.0", pinned="cpu:0/3"))
    (decision,) = driver.send(QueueReleased(Q))
    assert isinstance(decision, Bind)
    assert decision.stream == "cpu:0/3"


def test_a_pinned_queue_fails_its_tasks_while_its_stream_does_not_work_and_goes_on_when_it_does() -> None:
    driver = nested()
    driver.send(opened("1.0", pinned="cpu:0/3"))
    driver.send(DeviceLost(CPU, "unplugged"))
    (failed,) = driver.send(QueueReleased(Q))
    assert isinstance(failed, FailAll)
    assert failed.status is TaskStatus.NO_DEVICE
    assert "cpu:0/3" in failed.message
    assert "unplugged" in failed.message
    (bound,) = driver.send(added("cpu:0", 1, *PARTS))
    assert isinstance(bound, Bind)
    assert bound.stream == "cpu:0/3"


def test_a_pinned_queue_fails_its_tasks_when_its_device_comes_back_without_that_stream() -> None:
    driver = nested()
    driver.send(opened("1.0", pinned="cpu:0/5"))
    driver.send(DeviceLost(CPU, "unplugged"))
    driver.send(QueueReleased(Q))
    decisions = driver.send(added("cpu:0", 2))
    assert [type(decision) for decision in decisions] == [FailAll]


def test_a_queue_that_is_pinned_to_a_stream_cannot_be_moved() -> None:
    driver = nested()
    driver.send(opened("1.0", pinned="cpu:0/3"))
    decisions = driver.send(MigrateRequested(Q, CPU1, 1))
    assert answers(decisions) == [(1, False)]
    assert "pinned to cpu:0/3" in str(decisions)


def test_a_missing_kernel_fails_the_head_of_a_queue_that_is_pinned_to_a_stream() -> None:
    driver = nested()
    driver.send(opened("1.0", pinned="cpu:0/3"))
    failed, bound = driver.send(KernelMissing(Q, GEMM, (CPU1,)))
    assert isinstance(failed, FailHead)
    assert "of which the queue is pinned; it has one for cpu:1. Submit it" in failed.message
    assert isinstance(bound, Bind)
    assert bound.stream == "cpu:0/3"


@pytest.mark.parametrize(
    "question", [KernelMissing(Q, GEMM, (CPU1, CPU)), HomePossible(Q, GEMM, 1, 10**9), DeviceWished(Q, CPU1)]
)
def test_a_head_that_could_run_elsewhere_runs_on_the_pinned_stream(question: HeldHead) -> None:
    driver = nested("memory_aware")
    driver.send(opened("1.0", pinned="cpu:0/3"))
    (bound,) = driver.send(question)
    assert isinstance(bound, Bind)
    assert bound.stream == "cpu:0/3"


def test_a_pinned_queue_ends_when_it_was_closed_and_its_stream_let_go_of_it() -> None:
    driver = nested()
    driver.send(opened("1.0", pinned="cpu:0/3"))
    driver.send(QueueClosed(Q))
    assert driver.send(QueueReleased(Q)) == []
    assert driver.engine.queue(Q) is None


class Saying:
    """Says what it was told to say."""

    def __init__(self) -> None:
        self.decisions: tuple[Decision, ...] = ()

    def decide(self, *_: object) -> list[Decision]:
        said, self.decisions = self.decisions, ()
        return list(said)


@pytest.mark.parametrize(
    ("decision", "problem"),
    [
        (Bind(QueueId("2.0"), StreamId("cpu:0/3")), "takes only queues that are pinned to it"),
        (Revoke(Q), "pinned to stream cpu:0/3"),
        (Migrate(Q, DeviceId("cpu:1")), "pinned to stream cpu:0/3"),
        (Reject(Q, "no"), "opened no such queue"),
    ],
)
def test_a_policy_that_disregards_a_part_or_a_pin_is_told(decision: Decision, problem: str) -> None:
    policy = Saying()
    engine = Engine(policy)
    for now, event in enumerate([added("cpu:0", 1, *PARTS), added("cpu:1"), opened("1.0", pinned="cpu:0/3")]):
        engine.handle(event, now)
    engine.handle(opened("2.0"), 5)
    policy.decisions = (decision,)
    with pytest.raises(BadDecision, match=problem):
        engine.handle(Tick(), 6)


def test_a_policy_cannot_reject_what_the_engine_has_bound() -> None:
    policy = Saying()
    engine = Engine(policy)
    engine.handle(added("cpu:0", 1, *PARTS), 0)
    policy.decisions = (Reject(Q, "no"),)
    with pytest.raises(BadDecision, match="opened no such queue") as failure:
        engine.handle(opened("1.0", pinned="cpu:0/3"), 1)
    (bound,) = failure.value.decisions
    assert isinstance(bound, Bind)
