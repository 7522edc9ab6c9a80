"""What every policy that binds queues to streams does about missing kernels, lost devices and pins."""

from __future__ import annotations

from polymux.core.decision import Bind, FailAll, FailHead, Stay
from polymux.core.event import HomePossible, KernelMissing, Tick
from polymux.core.ids import DeviceId, KernelName, QueueId
from polymux.core.snapshot import QueueState, QueueView, Snapshot
from polymux.core.status import TaskStatus
from polymux.policy.round_robin import RoundRobin
from tests.unit.policy.snapshots import device, queue, snapshot

CPU, CL = DeviceId("cpu:0"), DeviceId("opencl:0")


def bound(on: str = "cpu:0", **fields: object) -> QueueView:
    return queue(state=QueueState.BOUND, stream=f"{on}/0", device=DeviceId(on), **fields)


def held(on: str = "cpu:0", **fields: object) -> QueueView:
    return bound(on, **fields)._replace(state=QueueState.HELD)


def miss(seen: Snapshot, *devices: DeviceId) -> object:
    (decision,) = RoundRobin().decide(seen, KernelMissing(QueueId("1.0"), KernelName("gemm"), devices), 0)
    return decision


def place(seen: Snapshot) -> object:
    (decision,) = RoundRobin().decide(seen, Tick(), 0)
    return decision


def test_nothing_is_decided_when_nobody_waits_and_nothing_was_asked() -> None:
    assert RoundRobin().decide(snapshot([device("cpu:0")], [bound()]), Tick(), 0) == []


def test_a_missing_kernel_moves_the_queue_to_a_device_that_has_it() -> None:
    decision = miss(snapshot([device("cpu:0"), device("opencl:0")], [held()]), CL)
    assert isinstance(decision, Bind)
    assert decision.stream == "opencl:0/0"
    assert "gemm" in decision.reason


def test_a_missing_kernel_prefers_home_over_other_helpers() -> None:
    seen = snapshot([device("opencl:0"), device("cpu:0"), device("cpu:1")], [held("cpu:1", home=CPU)])
    decision = miss(seen, CL, CPU)
    assert isinstance(decision, Bind)
    assert decision.stream == "cpu:0/0"


def test_a_kernel_that_was_registered_meanwhile_keeps_the_queue_where_it_is() -> None:
    assert isinstance(miss(snapshot([device("cpu:0"), device("opencl:0")], [held()]), CL, CPU), Stay)


def test_a_missing_kernel_fails_the_head_of_a_pinned_queue_and_says_where_it_would_run() -> None:
    decision = miss(snapshot([device("cpu:0"), device("opencl:0")], [held(pinned=CPU)]), CL)
    assert isinstance(decision, FailHead)
    assert decision.status is TaskStatus.NO_DEVICE
    for part in ("'gemm'", "cpu:0", "opencl:0", "without a pin"):
        assert part in decision.message


def test_a_kernel_without_any_implementation_fails_the_head_and_lists_the_devices() -> None:
    decision = miss(snapshot([device("cpu:0"), device("opencl:0")], [held()]))
    assert isinstance(decision, FailHead)
    assert "any device here" in decision.message
    assert "cpu:0, opencl:0" in decision.message


def test_a_kernel_whose_only_device_is_lost_fails_the_head_and_says_so() -> None:
    decision = miss(snapshot([device("cpu:0"), device("opencl:0", lost="reset by driver")], [held()]), CL)
    assert isinstance(decision, FailHead)
    assert "opencl:0 (lost: reset by driver)" in decision.message


def test_a_device_that_the_engine_never_saw_is_no_helper() -> None:
    assert isinstance(miss(snapshot([device("cpu:0")], [held()]), DeviceId("gpu:7")), FailHead)


def test_a_queue_that_is_asked_at_home_whether_to_go_home_stays() -> None:
    event = HomePossible(QueueId("1.0"), KernelName("gemm"), 0, 10**9)
    assert isinstance(RoundRobin().decide(snapshot([device("cpu:0")], [held()]), event, 0)[0], Stay)


def test_a_queue_whose_home_is_lost_stays_away() -> None:
    event = HomePossible(QueueId("1.0"), KernelName("gemm"), 0, 10**9)
    seen = snapshot(
        [device("cpu:0", lost="gone"), device("opencl:0")], [held("opencl:0", home=CPU, credit_ns=10**9)]
    )
    (decision,) = RoundRobin().decide(seen, event, 0)
    assert isinstance(decision, Stay)
    assert "gone" in decision.reason


def test_a_waiting_queue_goes_to_its_target_then_to_its_pin_then_home() -> None:
    devices = [device("cpu:0"), device("cpu:1"), device("opencl:0")]
    for fields, expected in (
        ({"target": CL, "home": CPU}, "opencl:0/0"),
        ({"pinned": CL}, "opencl:0/0"),
        ({"home": DeviceId("cpu:1")}, "cpu:1/0"),
        ({}, "cpu:0/0"),
    ):
        decision = place(snapshot(devices, [queue(**fields)]))
        assert isinstance(decision, Bind)
        assert decision.stream == expected


def test_a_queue_whose_home_is_lost_is_placed_anywhere() -> None:
    decision = place(snapshot([device("cpu:0", lost="gone"), device("opencl:0")], [queue(home=CPU)]))
    assert isinstance(decision, Bind)
    assert decision.stream == "opencl:0/0"


def test_without_a_device_that_works_all_tasks_fail_with_the_reasons() -> None:
    decision = place(snapshot([device("cpu:0", lost="overheated")], [queue()]))
    assert isinstance(decision, FailAll)
    assert decision.status is TaskStatus.NO_DEVICE
    assert "overheated" in decision.message
    assert "devices: none" in place(snapshot([], [queue()])).message  # type: ignore[attr-defined]


def test_a_pinned_queue_is_not_moved_off_its_lost_device() -> None:
    decision = place(snapshot([device("cpu:0"), device("opencl:0", lost="unplugged")], [queue(pinned=CL)]))
    assert isinstance(decision, FailAll)
    for part in ("pinned to opencl:0", "unplugged", "cpu:0"):
        assert part in decision.message


def test_queues_that_wait_together_do_not_all_get_the_same_stream() -> None:
    waiting = [queue(f"1.{i}") for i in range(4)]
    decisions = RoundRobin().decide(snapshot([device("cpu:0", 2), device("opencl:0", 2)], waiting), Tick(), 0)
    assert len({decision.stream for decision in decisions if isinstance(decision, Bind)}) == 4
