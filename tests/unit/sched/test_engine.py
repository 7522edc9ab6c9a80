"""The engine: how queues are bound, taken back and closed, step by step."""

from __future__ import annotations

import sys

import pytest

from polymux.core.decision import (
    Bind,
    FailAll,
    Reject,
    Revoke,
)
from polymux.core.errors import InvalidRequest
from polymux.core.event import (
    DeviceAdded,
    DeviceLost,
    Event,
    LoadReported,
    MigrateRequested,
    QueueClosed,
    QueueReleased,
    StreamLoad,
    Tick,
)
from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.core.snapshot import QueueState
from polymux.policy import registry
from polymux.sched.engine import Engine
from tests.contract.driver import Driver, added, opened
from tests.unit.sched.running import CL, CPU, Q, running


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
