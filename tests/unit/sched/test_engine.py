"""The engine: how queues are bound, moved, taken back and closed, step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import pytest

from polymux.core.decision import (
    Answer,
    Bind,
    Decision,
    FailAll,
    FailHead,
    Migrate,
    Reject,
    Revoke,
    Stay,
    WakeAt,
)
from polymux.core.errors import BadDecision, InvalidRequest
from polymux.core.event import (
    DeviceAdded,
    DeviceLost,
    Event,
    HomePossible,
    KernelMissing,
    LoadReported,
    MigrateRequested,
    QueueClosed,
    QueueReleased,
    StreamLoad,
    Tick,
)
from polymux.core.ids import DeviceId, KernelName, QueueId, StreamId
from polymux.core.snapshot import QueueState, Snapshot
from polymux.core.status import TaskStatus
from polymux.policy import registry
from polymux.policy.round_robin import RoundRobin
from polymux.sched.engine import Engine
from tests.contract.driver import Driver, added, opened

Q = QueueId("1.0")
CPU, CPU1, CL = DeviceId("cpu:0"), DeviceId("cpu:1"), DeviceId("opencl:0")
GEMM = KernelName("gemm")


def running(*devices: str, policy: str = "round_robin", queue: str | None = "1.0") -> Driver:
    """Start with some devices, and a queue at the first of them."""
    driver = Driver(policy)
    for device in devices:
        driver.send(added(device))
    if queue is not None:
        driver.send(opened(queue))
    return driver


def migrate(driver: Driver, device: DeviceId, request: int, queue: QueueId = Q) -> list[Decision]:
    return driver.send(MigrateRequested(queue, device, request))


def answers(decisions: Sequence[Decision]) -> list[tuple[int, bool]]:
    return [(d.request, d.ok) for d in decisions if isinstance(d, Answer)]


def only_answer(decisions: Sequence[Decision]) -> Answer:
    (decision,) = decisions
    assert isinstance(decision, Answer)
    return decision


class TestBinding:
    def test_queues_are_dealt_out_to_all_devices_before_any_gets_a_second(self) -> None:
        driver = Driver("round_robin")
        driver.send(added("cpu:0", streams=2))
        driver.send(added("opencl:0"))
        for index in range(6):
            driver.send(opened(f"1.{index}"))
        streams = [driver.bound[QueueId(f"1.{index}")] for index in range(6)]
        assert streams == ["cpu:0/0", "opencl:0/0", "cpu:0/1"] * 2

    def test_a_queue_opened_without_devices_fails_its_tasks_until_one_is_added(self) -> None:
        driver = running()
        assert driver.failing == {Q}
        driver.send(added("cpu:0"))
        assert driver.device_of("1.0") == "cpu:0"

    def test_a_pin_to_an_unknown_device_is_refused_with_the_list_of_devices(self) -> None:
        driver = running("cpu:0", "opencl:0", queue=None)
        (decision,) = driver.send(opened("1.0", pinned="gpu:0"))
        assert isinstance(decision, Reject)
        assert "'gpu:0' is unknown; devices: cpu:0, opencl:0" in decision.message

    def test_a_pin_to_a_lost_device_is_refused_with_the_reason(self) -> None:
        driver = running("cpu:0", "opencl:0", queue=None)
        driver.send(DeviceLost(CL, "driver reset"))
        (decision,) = driver.send(opened("1.0", pinned="opencl:0"))
        assert isinstance(decision, Reject)
        assert "opencl:0 (lost: driver reset)" in decision.message

    def test_a_queue_let_go_of_unasked_is_bound_again_where_it_was(self) -> None:
        driver = running("cpu:0", "opencl:0")
        driver.send(QueueReleased(Q))
        assert driver.device_of("1.0") == "cpu:0"

    def test_opening_a_queue_twice_is_refused_and_changes_nothing(self) -> None:
        driver = running("cpu:0")
        before = driver.engine.snapshot()
        with pytest.raises(InvalidRequest, match=r"'1\.0' is open already"):
            driver.engine.handle(opened("1.0"), 5)
        assert driver.engine.snapshot() == before


class TestMigration:
    def test_a_migration_revokes_and_binds_at_the_target_when_the_thread_let_go(self) -> None:
        driver = running("cpu:0", "opencl:0")
        (revoke,) = migrate(driver, CL, 7)
        assert isinstance(revoke, Revoke)
        bind, answer = driver.send(QueueReleased(Q))
        assert isinstance(bind, Bind)
        assert bind.stream == "opencl:0/0"
        assert answer == Answer(7, True, "queue 1.0 runs on opencl:0", "queue 1.0 runs on opencl:0")

    def test_migrating_to_where_it_is_is_answered_at_once(self) -> None:
        driver = running("cpu:0", "opencl:0")
        answer = only_answer(migrate(driver, CPU, 1))
        assert answer.ok
        assert "runs on cpu:0 already" in answer.message

    def test_a_later_migration_takes_over_and_the_earlier_one_is_told(self) -> None:
        driver = running("cpu:0", "cpu:1", "opencl:0")
        migrate(driver, CL, 1)
        decisions = migrate(driver, CPU1, 2)
        assert answers(decisions) == [(1, False)]
        assert "cpu:1" in only_answer(decisions).message
        assert answers(driver.send(QueueReleased(Q))) == [(2, True)]
        assert driver.device_of("1.0") == "cpu:1"

    def test_two_requests_for_the_same_target_are_both_answered_there(self) -> None:
        driver = running("cpu:0", "opencl:0")
        migrate(driver, CL, 1)
        assert migrate(driver, CL, 2) == []
        assert answers(driver.send(QueueReleased(Q))) == [(1, True), (2, True)]

    def test_a_migration_can_be_called_back_while_the_thread_still_holds_the_queue(self) -> None:
        driver = running("cpu:0", "opencl:0")
        migrate(driver, CL, 1)
        assert answers(migrate(driver, CPU, 2)) == [(1, False)]
        driver.settle()
        assert driver.device_of("1.0") == "cpu:0"

    @pytest.mark.parametrize("queue", ["9.9", "", "1"])
    def test_an_unknown_queue_is_answered_with_those_that_are_open(self, queue: str) -> None:
        driver = running("cpu:0")
        answer = only_answer(migrate(driver, CPU, 1, QueueId(queue)))
        assert not answer.ok
        assert f"{queue!r} is not open; open queues: 1.0" in answer.message

    def test_a_closed_queue_is_answered_as_unknown_though_its_thread_holds_it_still(self) -> None:
        driver = running("cpu:0")
        driver.send(QueueClosed(Q))
        assert "open queues: none" in only_answer(migrate(driver, CPU, 1)).message

    def test_the_list_of_open_queues_in_an_answer_is_short(self) -> None:
        driver = running("cpu:0", queue=None)
        for index in range(50):
            driver.send(opened(f"1.{index}"))
        assert "1.7, ..." in only_answer(migrate(driver, CPU, 1, QueueId("9.9"))).message

    def test_an_unknown_device_is_answered_with_the_list_of_devices(self) -> None:
        answer = only_answer(migrate(running("cpu:0", "opencl:0"), DeviceId("gpu:0"), 1))
        assert not answer.ok
        assert "'gpu:0' is unknown; devices: cpu:0, opencl:0" in answer.message

    def test_a_lost_device_is_answered_with_the_reason(self) -> None:
        driver = running("cpu:0", "opencl:0")
        driver.send(DeviceLost(CL, "driver reset"))
        assert (
            "was lost; devices: cpu:0, opencl:0 (lost: driver reset)"
            in only_answer(migrate(driver, CL, 1)).message
        )

    def test_a_pinned_queue_is_not_migrated_and_the_answer_says_why(self) -> None:
        driver = running("cpu:0", "opencl:0", queue=None)
        driver.send(opened("1.0", pinned="cpu:0"))
        answer = only_answer(migrate(driver, CL, 1))
        assert not answer.ok
        assert "pinned to cpu:0" in answer.message

    def test_a_target_lost_on_the_way_is_answered_and_the_queue_goes_on_elsewhere(self) -> None:
        driver = running("cpu:0", "opencl:0")
        migrate(driver, CL, 1)
        decisions = driver.send(DeviceLost(CL, "driver reset"))
        assert answers(decisions) == [(1, False)]
        assert "driver reset" in only_answer(decisions).message
        driver.settle()
        assert driver.device_of("1.0") == "cpu:0"

    def test_closing_on_the_way_is_answered_and_the_queue_is_not_bound_again(self) -> None:
        driver = running("cpu:0", "opencl:0")
        migrate(driver, CL, 1)
        decisions = driver.send(QueueClosed(Q))
        assert answers(decisions) == [(1, False)]
        assert "was closed before" in only_answer(decisions).message
        assert driver.send(QueueReleased(Q)) == []
        assert driver.engine.snapshot().queues == {}

    def test_a_migration_makes_the_target_the_new_home(self) -> None:
        driver = running("cpu:0", "opencl:0")
        driver.send(KernelMissing(Q, GEMM, (CL,)))
        driver.settle()
        assert driver.engine.snapshot().queues[Q].home == CPU
        assert only_answer(migrate(driver, CL, 1)).ok
        assert driver.engine.snapshot().queues[Q].home is None


class TestHelper:
    def away(self, *others: str) -> Driver:
        driver = running("cpu:0", "opencl:0", *others)
        (revoke,) = driver.send(KernelMissing(Q, GEMM, (CL,)))
        assert isinstance(revoke, Revoke)
        driver.settle()
        assert driver.device_of("1.0") == "opencl:0"
        assert driver.engine.snapshot().queues[Q].home == CPU
        return driver

    def possible(
        self, driver: Driver, transfer_ns: int | None, gain_ns: int | None, after_ns: int = 1
    ) -> bool:
        """Ask whether the queue goes home, and let it."""
        driver.send(HomePossible(Q, GEMM, transfer_ns, gain_ns), after_ns)
        driver.settle()
        return driver.device_of("1.0") == "cpu:0"

    def test_home_is_remembered_over_several_helpers(self) -> None:
        driver = self.away("simulated:0")
        driver.send(KernelMissing(Q, KernelName("fft"), (DeviceId("simulated:0"),)))
        driver.settle()
        view = driver.engine.snapshot().queues[Q]
        assert (view.device, view.home) == ("simulated:0", CPU)

    def test_a_helper_that_lacks_what_home_has_sends_the_queue_home(self) -> None:
        driver = self.away()
        driver.send(KernelMissing(Q, KernelName("fft"), (CPU,)))
        driver.settle()
        view = driver.engine.snapshot().queues[Q]
        assert (view.device, view.home) == (CPU, None)

    def test_gains_add_up_until_going_home_pays(self) -> None:
        driver = self.away()
        assert [self.possible(driver, 100, 40) for _ in range(3)] == [False, False, True]
        assert driver.engine.snapshot().queues[Q].home is None

    def test_losses_take_back_what_gains_added(self) -> None:
        driver = self.away()
        estimates = [80, -50, 60]
        assert [self.possible(driver, 100, gain_ns) for gain_ns in estimates] == [False, False, False]

    def test_a_queue_that_alternates_between_two_kernels_settles_where_it_is_cheaper(self) -> None:
        driver = self.away()
        visits = 0
        for _ in range(
            50
        ):  # a task gains 15 us at home, but a way costs 10 us and the next task has to go back
            if self.possible(driver, 10_000, 15_000):
                visits += 1
                driver.send(KernelMissing(Q, GEMM, (CL,)))
                driver.settle()
        assert visits == 6
        assert self.possible(driver, 10_000, 25_000)

    def test_after_a_long_stay_at_home_one_way_must_pay_again(self) -> None:
        driver = self.away()
        assert self.possible(driver, 10, 10)
        driver.send(KernelMissing(Q, GEMM, (CL,)), after_ns=10_000)
        driver.settle()
        assert self.possible(driver, 10, 10)

    def test_a_helper_lost_on_the_way_leaves_the_queue_at_home(self) -> None:
        driver = running("cpu:0", "opencl:0")
        driver.send(KernelMissing(Q, GEMM, (CL,)))
        driver.send(DeviceLost(CL, "gone"))
        driver.settle()
        view = driver.engine.snapshot().queues[Q]
        assert (view.device, view.home) == (CPU, None)

    def test_a_helper_lost_while_the_queue_is_there_sends_it_home(self) -> None:
        driver = self.away("cpu:1")
        driver.send(DeviceLost(CL, "gone"))
        driver.settle()
        assert driver.device_of("1.0") == "cpu:0"

    def test_a_queue_let_go_of_unasked_at_a_helper_stays_away(self) -> None:
        driver = self.away()
        driver.send(QueueReleased(Q))
        view = driver.engine.snapshot().queues[Q]
        assert (view.device, view.home) == (CL, CPU)

    @pytest.mark.parametrize("event", [KernelMissing(Q, GEMM, (CL,)), HomePossible(Q, GEMM, 1, 10**9)])
    def test_a_held_head_of_a_queue_that_moves_anyway_is_let_go(self, event: Event) -> None:
        driver = running("cpu:0", "cpu:1", "opencl:0")
        migrate(driver, CPU1, 1)
        (stay,) = driver.send(event)
        assert isinstance(stay, Stay)
        driver.settle()
        assert driver.device_of("1.0") == "cpu:1"

    @pytest.mark.parametrize("event", [KernelMissing(Q, GEMM, (CL,)), HomePossible(Q, GEMM, 1, 10**9)])
    def test_a_late_question_about_a_closed_queue_is_ignored(self, event: Event) -> None:
        driver = running("cpu:0", "opencl:0")
        driver.send(QueueClosed(Q))
        assert driver.send(event) == []
        driver.settle()
        assert driver.send(event) == []


class TestClosing:
    def test_a_bound_queue_is_revoked_and_ends_when_the_thread_let_go(self) -> None:
        driver = running("cpu:0")
        (revoke,) = driver.send(QueueClosed(Q))
        assert isinstance(revoke, Revoke)
        assert driver.engine.snapshot().queues[Q].state is QueueState.CLOSING
        assert driver.send(QueueReleased(Q)) == []
        assert driver.engine.snapshot().queues == {}

    def test_a_queue_that_fails_its_tasks_ends_at_once(self) -> None:
        driver = running()
        assert driver.send(QueueClosed(Q)) == []
        assert driver.engine.snapshot().queues == {}

    @pytest.mark.parametrize("event", [QueueClosed(Q), QueueReleased(Q)])
    def test_closing_or_letting_go_twice_does_nothing(self, event: Event) -> None:
        driver = running("cpu:0")
        driver.send(QueueClosed(Q))
        driver.send(QueueReleased(Q))
        assert driver.send(event) == []

    def test_a_name_opened_again_waits_until_the_thread_let_go_of_the_old_queue(self) -> None:
        driver = running("cpu:0", "opencl:0")
        driver.send(QueueClosed(Q))
        assert driver.send(opened("1.0", pinned="opencl:0")) == []
        (bind,) = driver.send(QueueReleased(Q))
        assert isinstance(bind, Bind)
        assert bind.stream == "opencl:0/0"

    def test_a_name_opened_again_and_closed_again_is_forgotten(self) -> None:
        driver = running("cpu:0")
        driver.send(QueueClosed(Q))
        driver.send(opened("1.0"))
        assert driver.send(QueueClosed(Q)) == []
        assert driver.send(QueueReleased(Q)) == []
        assert driver.engine.snapshot().queues == {}

    def test_a_name_opened_again_whose_pin_is_lost_meanwhile_is_refused_then(self) -> None:
        driver = running("cpu:0", "opencl:0")
        driver.send(QueueClosed(Q))
        driver.send(opened("1.0", pinned="opencl:0"))
        driver.send(DeviceLost(CL, "gone"))
        (decision,) = driver.send(QueueReleased(Q))
        assert isinstance(decision, Reject)


class TestDevices:
    def test_queues_of_a_lost_device_move_to_one_that_works(self) -> None:
        driver = running("cpu:0", "opencl:0", queue=None)
        for index in range(6):
            driver.send(opened(f"1.{index}"))
        assert len(driver.send(DeviceLost(CL, "gone"))) == 3
        driver.settle()
        assert {driver.device_of(f"1.{index}") for index in range(6)} == {"cpu:0"}

    def test_with_the_last_device_all_queues_fail_and_go_on_when_it_is_back(self) -> None:
        driver = running("cpu:0")
        driver.send(DeviceLost(CPU, "gone"))
        (decision,) = driver.send(QueueReleased(Q))
        assert isinstance(decision, FailAll)
        assert "gone" in decision.message
        driver.send(added("cpu:0"))
        assert driver.device_of("1.0") == "cpu:0"

    def test_a_device_that_is_back_before_its_old_thread_let_go_counts_its_queues_right(self) -> None:
        driver = running("cpu:0")
        driver.send(DeviceLost(CPU, "gone"))
        driver.send(added("cpu:0"))
        assert driver.engine.snapshot().streams[StreamId("cpu:0/0")].queues == 0
        driver.send(QueueReleased(Q))
        assert driver.engine.snapshot().streams[StreamId("cpu:0/0")].queues == 1

    def test_a_loss_reported_by_each_of_its_threads_counts_once(self) -> None:
        driver = running("cpu:0", "opencl:0")
        driver.send(DeviceLost(CPU, "gone"))
        assert driver.send(DeviceLost(CPU, "gone")) == []

    def test_the_loss_of_a_device_that_was_never_there_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="'gpu:0', reported lost, was never added; devices: cpu:0"):
            running("cpu:0").engine.handle(DeviceLost(DeviceId("gpu:0"), "x"), 5)

    def test_a_device_that_is_there_cannot_be_added_again(self) -> None:
        with pytest.raises(InvalidRequest, match="'cpu:0' is there already"):
            running("cpu:0").engine.handle(added("cpu:0"), 5)

    def test_a_device_without_streams_or_with_those_of_another_is_refused_and_changes_nothing(self) -> None:
        driver = running("cpu:0")
        before = driver.engine.snapshot()
        good = added("cpu:1", 2)
        for streams in ((), added("cpu:0").streams, good.streams * 2):
            with pytest.raises(InvalidRequest, match="streams"):
                driver.engine.handle(DeviceAdded(good.spec, streams), 5)
        assert driver.engine.snapshot() == before

    def test_loads_are_entered_and_streams_left_out_are_idle(self) -> None:
        driver = running("cpu:0", "opencl:0")
        load = StreamLoad(pending=3, busy_ns=5, queues=1)
        driver.send(LoadReported({StreamId("cpu:0/0"): load, StreamId("gpu:9/0"): load}))
        assert driver.engine.snapshot().streams[StreamId("cpu:0/0")].load == load
        driver.send(LoadReported({}))
        assert driver.engine.snapshot().streams[StreamId("cpu:0/0")].load == StreamLoad()

    def test_the_least_loaded_stream_gets_the_next_queue(self) -> None:
        driver = running("cpu:0", "opencl:0", policy="least_loaded", queue=None)
        driver.send(LoadReported({StreamId("cpu:0/0"): StreamLoad(9, 10**6, 0)}))
        driver.send(opened("1.0"))
        assert driver.device_of("1.0") == "opencl:0"


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
            (MISSING, [Migrate(Q, CPU)], "there already"),
            (KernelMissing(Q, GEMM, ()), [Migrate(Q, CL)], "no implementation of kernel gemm"),
            (POSSIBLE, [Migrate(Q, CL)], "not the queue's home"),
            (Tick(), [Stay(Q)], "nothing was asked"),
            (Tick(), [FailHead(Q, TaskStatus.NO_DEVICE, "m")], "misses no kernel"),
            (POSSIBLE, [FailHead(Q, TaskStatus.NO_DEVICE, "m")], "misses no kernel"),
            (MISSING, [FailHead(Q, TaskStatus.OK, "m")], "OK is no failure"),
            (MISSING, [], "got no answer"),
            (POSSIBLE, [Stay(QueueId("1.1"))], "nothing was asked"),
            (Tick(), [WakeAt(20)], "not after 20 ns"),
            (Tick(), [Answer(1, True, "m")], "policies answer no requests"),
            (MigrateRequested(Q, CL, 1), [Revoke(Q)], "revoking, not bound"),
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
        assert words == ["10 ns: QueueOpened", "10 ns: Bind", "11 ns: MigrateRequested", "11 ns: Revoke"]

    def test_the_story_keeps_the_last_events_only(self) -> None:
        engine, policy = scripted()
        for now in range(1000):
            engine.handle(HomePossible(Q, GEMM, 1, 0), now)
        policy.script = [Reject(Q, "m")]
        with pytest.raises(BadDecision) as caught:
            engine.handle(Tick(), 2000)
        assert len(caught.value.story) == 16
        assert caught.value.story[-1].startswith("999 ns: Stay")

    def test_what_follows_from_the_event_itself_is_handed_out_with_the_error(self) -> None:
        engine, policy = scripted()
        policy.script = [Reject(Q, "m")]
        with pytest.raises(BadDecision) as caught:
            engine.handle(DeviceLost(CPU, "gone"), 20)
        assert [type(decision) for decision in caught.value.decisions] == [Revoke, Revoke]

    @pytest.mark.parametrize(("event", "instead"), [(MISSING, FailHead), (POSSIBLE, Stay)])
    def test_a_held_head_is_let_go_even_when_the_policy_fails(
        self, event: Event, instead: type[Decision]
    ) -> None:
        engine, policy = scripted()
        policy.script = ZeroDivisionError("division by zero")
        with pytest.raises(BadDecision, match="the policy raised ZeroDivisionError") as caught:
            engine.handle(event, 20)
        (decision,) = caught.value.decisions
        assert isinstance(decision, instead)
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
        assert [type(d) for d in engine.handle(Tick(), 20)] == [Revoke, Revoke]
        (bind,) = engine.handle(QueueReleased(Q), 30)
        assert isinstance(bind, Bind)
        assert bind.stream == "opencl:0/0"
        assert engine.snapshot().queues[Q].home is None


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


def test_one_queue_can_be_looked_at_without_a_snapshot_of_all() -> None:
    driver = running("cpu:0")
    assert driver.engine.queue(Q) == driver.engine.snapshot().queues[Q]
    assert driver.engine.queue(QueueId("9.9")) is None


def test_a_snapshot_for_a_report_stays_as_it_is() -> None:
    driver = running("cpu:0")
    snapshot = driver.engine.snapshot()
    driver.send(QueueClosed(Q))
    driver.settle()
    assert snapshot.queues[Q].state is QueueState.BOUND


@pytest.mark.parametrize("policy", registry.names())
def test_the_work_per_event_does_not_grow_with_the_number_of_queues(policy: str) -> None:
    def calls(n_queues: int) -> int:
        engine = Engine(registry.load(policy))
        engine.handle(added("cpu:0", 2), 0)
        engine.handle(added("opencl:0", 2), 0)
        for index in range(n_queues):
            engine.handle(opened(f"1.{index}"), 0)
        device = engine.snapshot().queues[Q].device
        target = CL if device == CPU else CPU
        count = 0

        def profile(frame: object, what: str, argument: object) -> None:
            nonlocal count
            count += what in ("call", "c_call")

        events = [
            MigrateRequested(Q, target, 1),
            QueueReleased(Q),
            LoadReported({}),
            Tick(),
            opened("2.0"),
            QueueClosed(Q),
            QueueReleased(Q),
        ]
        sys.setprofile(profile)
        try:
            for event in events:
                engine.handle(event, 1)
        finally:
            sys.setprofile(None)
        return count

    assert calls(1000) <= calls(10) * 1.2
