"""Every policy that is registered, under any order of events: what a driver of the engine may rely on."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from polymux.core.event import (
    DeviceLoad,
    DeviceLost,
    DeviceWished,
    Event,
    HomePossible,
    KernelMissing,
    LoadReported,
    MigrateRequested,
    QueueClosed,
    QueueLoad,
    QueuePrepared,
    QueueReleased,
    StreamLoad,
    Tick,
)
from polymux.core.ids import DeviceId, KernelName, QueueId, StreamId
from polymux.sched import recording
from polymux.sched.replay import replay
from tests.contract.driver import POLICIES, Driver, added, opened

DEVICES = ["cpu:0", "cpu:1", "opencl:0", "simulated:0"]
QUEUES = [f"{session}.{index}" for session in (1, 2) for index in range(4)]
devices = st.sampled_from(DEVICES)
queues = st.sampled_from(QUEUES)
estimates = st.none() | st.integers(-(10**9), 10**9) | st.integers(0, 10**4)
rates = st.none() | st.integers(0, 10**6)
queue_loads = st.builds(
    QueueLoad,
    st.integers(0, 50),
    st.integers(0, 100),
    st.integers(0, 10**9),
    st.dictionaries(devices | st.just("host"), st.integers(0, 1 << 31), max_size=3),
)
device_loads = st.builds(DeviceLoad, st.integers(0, 1 << 30), rates, rates)
loads = st.builds(StreamLoad, st.integers(0, 2000), st.integers(0, 10**9), st.integers(0, 8))


def _stream(of: tuple[str, int]) -> str:
    return f"{of[0]}/{of[1]}"


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Applications, threads and devices that do what they like; the `Driver` checks every decision."""

    def __init__(self, policy: str) -> None:
        super().__init__()
        self.driver = Driver(policy)
        self.requests = 0
        self.lost: set[str] = set(DEVICES)

    def send(self, event: Event, after_ns: int = 1000) -> None:
        line = self.driver.recorded
        self.driver.send(event, after_ns)
        assert recording.write_step(recording.QUEUES.read_step(line[-1])) == line[-1]

    @rule(
        device=devices, streams=st.integers(1, 3), parts=st.sampled_from([[], [(0,)], [(0, 1), (2, 3), (2,)]])
    )
    def add_device(self, device: str, streams: int, parts: list[tuple[int, ...]]) -> None:
        if device in self.lost:
            self.lost.remove(device)
            self.send(added(device, streams, *parts))

    @rule(device=devices)
    def lose_device(self, device: str) -> None:
        if DeviceId(device) in self.driver.engine.snapshot().devices:
            self.lost.add(device)
            self.send(DeviceLost(DeviceId(device), "it fell off the bus"))

    @rule(
        queue=queues,
        pinned=st.none() | st.none() | devices | st.tuples(devices, st.integers(0, 3)).map(_stream),
        priority=st.integers(-1, 1),
        weight=st.integers(1, 10_000),
        memory_nbytes=st.sampled_from([0, 0, 1 << 20, 1 << 29, 1 << 40]),
    )
    def open_queue(
        self, queue: str, pinned: str | None, priority: int, weight: int, memory_nbytes: int
    ) -> None:
        if queue not in self.driver.open:
            self.send(opened(queue, pinned, priority, weight, memory_nbytes))

    @rule(queue=queues)
    def close_queue(self, queue: str) -> None:
        self.send(QueueClosed(QueueId(queue)))

    @precondition(lambda self: self.driver.revoked)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self.send(QueueReleased(data.draw(st.sampled_from(sorted(self.driver.revoked)))))

    @precondition(lambda self: self.driver.bound)
    @rule(data=st.data())
    def let_go_unasked(self, data: st.DataObject) -> None:
        self.send(QueueReleased(data.draw(st.sampled_from(sorted(self.driver.bound)))))

    @rule(queue=queues)
    def let_go_late(self, queue: str) -> None:
        if queue not in self.driver.bound:
            self.send(QueueReleased(QueueId(queue)))

    @rule(queue=queues, having=st.lists(devices, unique=True, max_size=3), after_ns=st.integers(0, 10**9))
    def miss_kernel(self, queue: str, having: list[str], after_ns: int) -> None:
        self.send(KernelMissing(QueueId(queue), KernelName("gemm"), tuple(map(DeviceId, having))), after_ns)

    @rule(queue=queues, transfer_ns=estimates, gain_ns=estimates, after_ns=st.integers(0, 10**9))
    def run_away_from_home(
        self, queue: str, transfer_ns: int | None, gain_ns: int | None, after_ns: int
    ) -> None:
        transfer_ns = None if transfer_ns is None else abs(transfer_ns)
        self.send(HomePossible(QueueId(queue), KernelName("gemm"), transfer_ns, gain_ns), after_ns)

    @rule(queue=queues, device=devices)
    def wish(self, queue: str, device: str) -> None:
        self.send(DeviceWished(QueueId(queue), DeviceId(device)))

    @precondition(lambda self: self.driver.preparing)
    @rule(data=st.data(), problem=st.none() | st.none() | st.just("it lacks 4 bytes"))
    def prepare(self, data: st.DataObject, problem: str | None) -> None:
        queue, device = data.draw(st.sampled_from(sorted(self.driver.preparing.items())))
        self.send(QueuePrepared(queue, device, problem))

    @rule(queue=queues, device=devices, problem=st.none() | st.just("it lacks 4 bytes"))
    def prepare_late(self, queue: str, device: str, problem: str | None) -> None:
        if self.driver.preparing.get(QueueId(queue)) != device:
            self.send(QueuePrepared(QueueId(queue), DeviceId(device), problem))

    @rule(queue=queues, device=devices)
    def ask_to_migrate(self, queue: str, device: str) -> None:
        self.requests += 1
        self.send(MigrateRequested(QueueId(queue), DeviceId(device), self.requests))

    @rule(data=st.data())
    def report_load(self, data: st.DataObject) -> None:
        streams = st.sampled_from(sorted(self.driver.streams) or ["cpu:9/0"]).map(StreamId)
        self.send(
            LoadReported(
                data.draw(st.dictionaries(streams, loads, max_size=4)),
                data.draw(st.dictionaries(queues.map(QueueId), queue_loads, max_size=8)),
                data.draw(st.dictionaries(devices.map(DeviceId), device_loads, max_size=4)),
            )
        )

    @rule()
    def tick(self) -> None:
        self.send(Tick())

    def teardown(self) -> None:
        self.driver.settle()
        assert not self.driver.asked, "a migration request was never answered"
        assert set(self.driver.bound) <= set(self.driver.open), "a closed queue is still drained"
        lines = [line + "\n" for line in self.driver.recorded]
        again = replay(lines)
        assert again.difference is None
        assert again.steps == len(lines) - 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_driver_can_rely_on_every_policy_in_any_order_of_events(policy: str) -> None:
    run_state_machine_as_test(
        lambda: AnyOrderOfEvents(policy),
        settings=settings(max_examples=30, stateful_step_count=40, deadline=None),
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_many_queues_opened_by_one_loss_or_gain_of_devices_spread_over_the_streams(policy: str) -> None:
    driver = Driver(policy)
    driver.send(added("cpu:1"))
    for index in range(12):
        driver.send(opened(f"1.{index}"))
    driver.send(DeviceLost(DeviceId("cpu:1"), "unplugged"))
    driver.settle()
    assert len(driver.failing) == 12
    driver.send(added("cpu:1", streams=3))
    assert not driver.failing
    counts = [view.queues for view in driver.engine.snapshot().streams.values()]
    assert counts == [4, 4, 4]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_queue_goes_to_a_helper_and_comes_home(policy: str) -> None:
    driver = Driver(policy)
    driver.send(added("cpu:1"))
    driver.send(opened("1.0"))
    driver.send(added("opencl:0"))
    driver.send(KernelMissing(QueueId("1.0"), KernelName("gemm"), (DeviceId("opencl:0"),)))
    driver.settle()
    assert driver.device_of("1.0") == "opencl:0"
    driver.send(HomePossible(QueueId("1.0"), KernelName("saxpy"), transfer_ns=100, gain_ns=50))
    driver.settle()
    assert driver.device_of("1.0") == "opencl:0"
    driver.send(HomePossible(QueueId("1.0"), KernelName("saxpy"), transfer_ns=100, gain_ns=50))
    driver.settle()
    assert driver.device_of("1.0") == "cpu:1"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pinned_queue_never_leaves_its_device(policy: str) -> None:
    driver = Driver(policy)
    driver.send(added("cpu:1"))
    driver.send(added("opencl:0"))
    driver.send(opened("1.0", pinned="opencl:0"))
    driver.send(KernelMissing(QueueId("1.0"), KernelName("gemm"), (DeviceId("cpu:1"),)))
    driver.send(MigrateRequested(QueueId("1.0"), DeviceId("cpu:1"), 1))
    driver.settle()
    assert driver.device_of("1.0") == "opencl:0"
    driver.send(DeviceLost(DeviceId("opencl:0"), "unplugged"))
    driver.settle()
    assert driver.failing == {"1.0"}
    driver.send(added("opencl:0"))
    assert driver.device_of("1.0") == "opencl:0"
