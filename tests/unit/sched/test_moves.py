"""The engine: how queues move, on request and to helpers and back."""

from __future__ import annotations

import pytest

from polymux.core.decision import (
    Answer,
    Bind,
    FailHead,
    Prepare,
    Revoke,
)
from polymux.core.event import (
    DeviceLost,
    DeviceWished,
    Event,
    HomePossible,
    KernelMissing,
    QueueClosed,
    QueuePrepared,
    QueueReleased,
)
from polymux.core.ids import DeviceId, KernelName, QueueId
from tests.contract.driver import Driver, opened
from tests.unit.sched.running import CL, CPU, CPU1, GEMM, Q, answers, migrate, only_answer, running

HELD: list[Event] = [KernelMissing(Q, GEMM, (CL,)), HomePossible(Q, GEMM, 1, 10**9), DeviceWished(Q, CL)]


class TestMigration:
    def test_a_migration_prepares_then_revokes_and_binds_at_the_target_when_the_thread_let_go(self) -> None:
        driver = running("cpu:0", "opencl:0")
        (prepare,) = migrate(driver, CL, 7)
        assert isinstance(prepare, Prepare)
        assert (prepare.queue, prepare.device) == (Q, CL)
        (revoke,) = driver.send(QueuePrepared(Q, CL))
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
        assert [d.device for d in decisions if isinstance(d, Prepare)] == [CPU1]
        assert driver.send(QueuePrepared(Q, CL)) == []
        driver.send(QueuePrepared(Q, CPU1))
        assert answers(driver.send(QueueReleased(Q))) == [(2, True)]
        assert driver.device_of("1.0") == "cpu:1"

    def test_all_requests_for_the_same_target_are_answered_there(self) -> None:
        driver = running("cpu:0", "opencl:0")
        migrate(driver, CL, 1)
        assert migrate(driver, CL, 2) == []
        driver.send(QueuePrepared(Q, CL))
        assert migrate(driver, CL, 3) == []
        assert answers(driver.send(QueueReleased(Q))) == [(1, True), (2, True), (3, True)]

    def test_a_migration_can_be_called_back_while_its_data_are_copied(self) -> None:
        driver = running("cpu:0", "opencl:0")
        migrate(driver, CL, 1)
        assert answers(migrate(driver, CPU, 2)) == [(1, False), (2, True)]
        assert driver.send(QueuePrepared(Q, CL)) == []
        assert driver.device_of("1.0") == "cpu:0"

    def test_a_migration_can_be_called_back_while_the_thread_still_holds_the_queue(self) -> None:
        driver = running("cpu:0", "opencl:0")
        migrate(driver, CL, 1)
        driver.send(QueuePrepared(Q, CL))
        assert answers(migrate(driver, CPU, 2)) == [(1, False)]
        driver.settle()
        assert driver.device_of("1.0") == "cpu:0"

    def test_a_queue_whose_data_do_not_fit_stays_where_it_is_and_the_answer_says_why(self) -> None:
        driver = running("cpu:0", "opencl:0", "cpu:1")
        driver.send(KernelMissing(Q, GEMM, (CPU1,)))
        migrate(driver, CL, 1)
        (answer,) = driver.send(QueuePrepared(Q, CL, "it lacks 4 bytes"))
        assert answer == Answer(1, False, "queue 1.0 stays on cpu:1: it lacks 4 bytes", answer.reason)  # type: ignore[union-attr]
        view = driver.engine.snapshot().queues[Q]
        assert (view.device, view.home, view.target) == (CPU1, CPU, None)

    def test_a_target_lost_while_data_are_copied_there_leaves_the_queue_where_it_is(self) -> None:
        driver = running("cpu:0", "opencl:0")
        migrate(driver, CL, 1)
        assert answers(driver.send(DeviceLost(CL, "driver reset"))) == [(1, False)]
        assert driver.send(QueuePrepared(Q, CL)) == []
        assert driver.device_of("1.0") == "cpu:0"

    def test_a_device_lost_while_its_queue_is_prepared_sends_the_queue_to_the_target(self) -> None:
        driver = running("cpu:0", "cpu:1", "opencl:0")
        migrate(driver, CL, 1)
        assert [type(d) for d in driver.send(DeviceLost(CPU, "driver reset"))] == [Revoke]
        assert driver.send(QueuePrepared(Q, CL)) == []
        assert answers(driver.send(QueueReleased(Q))) == [(1, True)]
        assert driver.device_of("1.0") == "opencl:0"

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
        assert any("was closed before" in str(decision) for decision in decisions)
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
        (bind,) = driver.send(KernelMissing(Q, GEMM, (CL,)))
        assert isinstance(bind, Bind)
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

    def test_a_task_that_wishes_for_a_device_makes_it_the_new_home(self) -> None:
        driver = self.away("cpu:1")
        (bind,) = driver.send(DeviceWished(Q, CPU1))
        assert isinstance(bind, Bind)
        view = driver.engine.snapshot().queues[Q]
        assert (view.device, view.home) == (CPU1, None)

    def test_a_wish_for_a_lost_device_leaves_the_queue_where_it_is(self) -> None:
        driver = running("cpu:0", "cpu:1")
        driver.send(DeviceLost(CPU1, "gone"))
        driver.send(DeviceWished(Q, CPU1))
        assert driver.device_of("1.0") == "cpu:0"

    def test_a_kernel_that_nobody_has_fails_the_head_and_the_queue_goes_on(self) -> None:
        driver = running("cpu:0", "cpu:1")
        fail, bind = driver.send(KernelMissing(Q, GEMM, ()))
        assert isinstance(fail, FailHead)
        assert isinstance(bind, Bind)
        assert bind.stream == "cpu:0/0"

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

    @pytest.mark.parametrize("event", HELD)
    def test_a_held_head_of_a_queue_that_moves_anyway_goes_where_the_queue_goes(self, event: Event) -> None:
        driver = running("cpu:0", "cpu:1", "opencl:0")
        migrate(driver, CPU1, 1)
        bind, answer = driver.send(event)
        assert isinstance(bind, Bind)
        assert isinstance(answer, Answer)
        assert driver.device_of("1.0") == "cpu:1"

    @pytest.mark.parametrize("event", HELD)
    def test_a_held_head_of_a_queue_that_was_revoked_counts_as_its_release(self, event: Event) -> None:
        driver = running("cpu:0", "cpu:1", "opencl:0")
        migrate(driver, CPU1, 1)
        driver.send(QueuePrepared(Q, CPU1))
        driver.send(event)
        assert driver.device_of("1.0") == "cpu:1"

    @pytest.mark.parametrize("event", HELD)
    def test_a_held_head_of_a_closed_queue_counts_as_its_release(self, event: Event) -> None:
        driver = running("cpu:0", "opencl:0")
        driver.send(QueueClosed(Q))
        assert driver.send(event) == []
        assert driver.engine.snapshot().queues == {}

    @pytest.mark.parametrize("event", HELD)
    def test_a_late_question_about_a_closed_queue_is_ignored(self, event: Event) -> None:
        driver = running("cpu:0", "opencl:0")
        driver.send(QueueClosed(Q))
        assert driver.send(event) == []
        driver.settle()
        assert driver.send(event) == []
