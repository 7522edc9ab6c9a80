"""The engine: what a policy is shown, and what becomes of decisions that must not be carried out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polymux.core.decision import (
    Answer,
    Bind,
    Decision,
    FailAll,
    FailHead,
    Migrate,
    Prepare,
    Reject,
    Revoke,
    Stay,
    WakeAt,
    Weigh,
)
from polymux.core.errors import BadDecision
from polymux.core.event import (
    DeviceLost,
    DeviceWished,
    Event,
    HomePossible,
    KernelMissing,
    MigrateRequested,
    QueuePrepared,
    QueueReleased,
    Tick,
)
from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.core.snapshot import QueueState, Snapshot
from polymux.core.status import TaskStatus
from polymux.policy.round_robin import RoundRobin
from polymux.sched.engine import Engine
from polymux.sched.fold import BARRED_NS
from tests.contract.driver import added, opened
from tests.unit.sched.running import CL, CPU, GEMM, Q


class Scripted(RoundRobin):
    """Decides what it is told to, once."""

    def __init__(self) -> None:
        self.script: list[Decision] | Exception | None = None
        self.watch: Callable[[Snapshot], None] = lambda _: None

    def decide(self, snapshot: Snapshot, event: Event, now: int) -> list[Decision]:
        self.watch(snapshot)
        script, self.script = self.script, None
        if isinstance(script, Exception):
            raise script
        return super().decide(snapshot, event, now) if script is None else script


def scripted() -> tuple[Engine, Scripted]:
    """Start with two devices, a queue on each, and one more pinned to the first; time is 10."""
    policy = Scripted()
    engine = Engine(policy)
    for event in (
        added("cpu:0"),
        added("opencl:0"),
        opened("1.0"),
        opened("1.1"),
        opened("1.2", pinned="cpu:0"),
    ):
        engine.handle(event, 10)
    return engine, policy


MISSING = KernelMissing(Q, GEMM, (CL,))
POSSIBLE = HomePossible(Q, GEMM, 1, 1)


class TestBadDecisions:
    @pytest.mark.parametrize(
        ("event", "decisions", "problem"),
        [
            (Tick(), [Bind(Q, StreamId("opencl:0/0"), "x")], "the queue is bound at cpu:0/0"),
            (Tick(), [Bind(QueueId("9.9"), StreamId("cpu:0/0"), "x")], "no such queue is open"),
            (opened("2.0"), [Bind(QueueId("2.0"), StreamId("gpu:0/0"), "x")], "no such stream works"),
            (opened("2.0", "cpu:0"), [Bind(QueueId("2.0"), StreamId("opencl:0/0"), "x")], "pinned to cpu:0"),
            (
                opened("2.0"),
                [
                    Bind(QueueId("2.0"), StreamId("cpu:0/0"), "x"),
                    Bind(QueueId("2.0"), StreamId("cpu:0/0"), "x"),
                ],
                "a second decision about the same queue",
            ),
            (
                opened("2.0"),
                [FailAll(QueueId("2.0"), TaskStatus.NO_DEVICE, "m")],
                "could be bound to cpu:0/0",
            ),
            (Tick(), [FailAll(Q, TaskStatus.NO_DEVICE, "m")], "the queue is bound"),
            (Tick(), [Reject(Q, "m")], "this event opened no such queue"),
            (Tick(), [Migrate(Q, DeviceId("gpu:0"))], "no such device works"),
            (Tick(), [Migrate(Q, CPU)], "the queue is there already"),
            (Tick(), [Migrate(QueueId("1.2"), CL)], "pinned to cpu:0"),
            (Tick(), [Prepare(Q, CL)], "prepare nothing"),
            (Tick(), [Weigh(Q, 0)], "not from 1 to 10000"),
            (Tick(), [Weigh(QueueId("9.9"), 5)], "no such queue is open"),
            (opened("2.0"), [Weigh(QueueId("2.0"), 5)], "the queue is waiting"),
            (opened("2.0"), [Bind(QueueId("2.0"), StreamId("cpu:0/0"), "x", 10_001)], "not from 1 to 10000"),
            (MISSING, [Migrate(Q, CL)], "the queue is held"),
            (MISSING, [Bind(Q, StreamId("cpu:0/0"))], "cpu:0 has no implementation of kernel gemm"),
            (
                KernelMissing(Q, GEMM, ()),
                [Bind(Q, StreamId("opencl:0/0"))],
                "no implementation of kernel gemm",
            ),
            (POSSIBLE, [Bind(Q, StreamId("opencl:0/0"))], "not the queue's home"),
            (DeviceWished(Q, CPU), [Bind(Q, StreamId("opencl:0/0"))], "wishes for cpu:0"),
            (DeviceWished(Q, CL), [], "got no answer"),
            (DeviceWished(Q, CL), [FailHead(Q, TaskStatus.NO_DEVICE, "m")], "misses no kernel"),
            (
                KernelMissing(QueueId("1.2"), GEMM, (CL,)),
                [Bind(QueueId("1.2"), StreamId("opencl:0/0"))],
                "pinned to cpu:0",
            ),
            (Tick(), [Stay(Q)], "nothing was asked"),
            (Tick(), [FailHead(Q, TaskStatus.NO_DEVICE, "m")], "misses no kernel"),
            (POSSIBLE, [FailHead(Q, TaskStatus.NO_DEVICE, "m")], "misses no kernel"),
            (MISSING, [FailHead(Q, TaskStatus.OK, "m")], "OK is no failure"),
            (MISSING, [], "got no answer"),
            (POSSIBLE, [Stay(QueueId("1.1"))], "nothing was asked"),
            (Tick(), [WakeAt(20)], "not after 20 ns"),
            (Tick(), [Answer(1, True, "m")], "policies answer no requests"),
            (MigrateRequested(Q, CL, 1), [Revoke(Q)], "preparing, not bound"),
        ],
    )
    def test_a_decision_that_must_not_be_carried_out_is_refused_and_none_of_its_batch_is(
        self, event: Event, decisions: list[Decision], problem: str
    ) -> None:
        engine, policy = scripted()
        policy.script = [*decisions]
        streams = engine.snapshot().streams
        with pytest.raises(BadDecision, match=problem):
            engine.handle(event, 20)
        assert engine.snapshot().streams == streams

    def test_the_error_tells_the_story_of_the_queue(self) -> None:
        engine, policy = scripted()
        engine.handle(MigrateRequested(Q, CL, 4), 11)
        policy.script = [Revoke(Q, "no reason")]
        with pytest.raises(BadDecision) as caught:
            engine.handle(Tick(), 20)
        words = [line.partition("(")[0] for line in caught.value.story]
        assert words == ["10 ns: QueueOpened", "10 ns: Bind", "11 ns: MigrateRequested", "11 ns: Prepare"]

    def test_the_story_keeps_the_last_events_only(self) -> None:
        engine, policy = scripted()
        for now in range(1000):
            engine.handle(HomePossible(Q, GEMM, 1, 0), now)
        policy.script = [Reject(Q, "m")]
        with pytest.raises(BadDecision) as caught:
            engine.handle(Tick(), 2000)
        assert len(caught.value.story) == 16
        assert caught.value.story[-1].startswith("999 ns: Bind")

    def test_what_follows_from_the_event_itself_is_handed_out_with_the_error(self) -> None:
        engine, policy = scripted()
        policy.script = [Reject(Q, "m")]
        with pytest.raises(BadDecision) as caught:
            engine.handle(DeviceLost(CPU, "gone"), 20)
        assert [type(decision) for decision in caught.value.decisions] == [Revoke, Revoke]

    @pytest.mark.parametrize(
        ("event", "instead"),
        [(MISSING, [FailHead, Bind]), (POSSIBLE, [Bind]), (DeviceWished(Q, CL), [Bind])],
    )
    def test_a_queue_whose_head_is_held_goes_on_where_it_was_even_when_the_policy_fails(
        self, event: Event, instead: list[type[Decision]]
    ) -> None:
        engine, policy = scripted()
        policy.script = ZeroDivisionError("division by zero")
        with pytest.raises(BadDecision, match="the policy raised ZeroDivisionError") as caught:
            engine.handle(event, 20)
        assert [type(decision) for decision in caught.value.decisions] == instead
        queue = engine.queue(Q)
        assert queue is not None
        assert (queue.state, queue.stream) == (QueueState.BOUND, "cpu:0/0")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_a_queue_that_a_failing_policy_left_waiting_is_placed_at_the_next_event(self) -> None:
        engine, policy = scripted()
        policy.script = ZeroDivisionError()
        with pytest.raises(BadDecision):
            engine.handle(opened("2.0"), 20)
        (bind,) = engine.handle(Tick(), 21)
        assert isinstance(bind, Bind)
        assert bind.queue == "2.0"

    def test_a_policy_may_wait_and_ask_to_be_woken(self) -> None:
        engine, policy = scripted()
        policy.script = [WakeAt(100, "later")]
        assert engine.handle(opened("2.0"), 20) == [WakeAt(100, "later")]
        assert isinstance(engine.handle(Tick(), 100)[0], Bind)

    def test_a_policy_may_move_or_take_back_a_bound_queue_by_itself(self) -> None:
        engine, policy = scripted()
        policy.script = [Migrate(Q, CL, "balance"), Revoke(QueueId("1.1"), "preempt")]
        assert [type(d) for d in engine.handle(Tick(), 20)] == [Prepare, Revoke]
        assert [type(d) for d in engine.handle(QueuePrepared(Q, CL), 25)] == [Revoke]
        (bind,) = engine.handle(QueueReleased(Q), 30)
        assert isinstance(bind, Bind)
        assert bind.stream == "opencl:0/0"
        assert engine.snapshot().queues[Q].home is None

    def test_a_policy_may_not_move_a_queue_at_once_again_to_where_its_data_did_not_fit(self) -> None:
        engine, policy = scripted()
        policy.script = [Migrate(Q, CL, "balance")]
        engine.handle(Tick(), 20)
        assert engine.handle(QueuePrepared(Q, CL, "it lacks 4 bytes"), 30) == []
        queue = engine.queue(Q)
        assert queue is not None
        assert (queue.state, queue.device, queue.target) == (QueueState.BOUND, CPU, None)
        assert queue.barred == {CL: 30 + BARRED_NS}
        policy.script = [Migrate(Q, CL, "again")]
        with pytest.raises(BadDecision, match="could not take the queue's data"):
            engine.handle(Tick(), 40)
        policy.script = [Migrate(Q, CL, "later")]
        assert [type(d) for d in engine.handle(Tick(), 30 + BARRED_NS)] == [Prepare]


def test_what_a_policy_is_shown_cannot_be_changed() -> None:
    engine, policy = scripted()
    seen: list[Snapshot] = []
    policy.watch = seen.append
    engine.handle(Tick(), 20)
    for mapping in (seen[0].devices, seen[0].streams, seen[0].queues):
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["x"] = None  # type: ignore[index]
        for value in mapping.values():
            with pytest.raises((AttributeError, TypeError)):
                value.id = "x"  # type: ignore[attr-defined]
