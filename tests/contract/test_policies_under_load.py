"""Policies with queues that have tasks: nothing is lost or runs twice, nobody starves, and what each one promises."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymux.core.decision import Prepare, Weigh
from polymux.core.event import DeviceLost, MigrateRequested, Tick
from polymux.core.ids import DeviceId, QueueId
from polymux.policy.rebalancing import RESIDENCE_NS
from polymux.sched.recording import QUEUES
from polymux.sched.replay import replay
from tests.contract.driver import POLICIES, added
from tests.contract.machine import MS, Machine, Work

S = 1000 * MS
MOVING = ["weighted_fair", "weighted_fair=app1:1,app2:3", "elastic"]
"""Policies that move queues by themselves."""

load = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def machine(policy: str, *devices: str, streams: int = 1) -> Machine:
    made = Machine(policy)
    for device in devices:
        made.send(added(device, streams))
    return made


def check_replay(made: Machine) -> None:
    again = replay([line + "\n" for line in made.driver.recorded])
    assert again.difference is None


class Crowd:
    """Applications, an operator and a broken cable, all of them at random."""

    def __init__(self, policy: str, rng: Random) -> None:
        self.rng = rng
        self.devices = ["cpu:0", "cpu:1", "opencl:0"]
        self.made = machine(policy, *self.devices, streams=rng.randint(1, 2))
        self.made.prepare_fails = lambda: rng.random() < 0.2
        self.made.prepare_ns = rng.randint(0, 30 * MS)
        self.lost: str | None = None
        self.requests = 0

    def act(self) -> None:
        """Do one thing, and let some time pass."""
        name = f"{self.rng.randint(1, 3)}.{self.rng.randint(0, 2)}"
        opened = QueueId(name) in self.made.driver.open
        if not opened and QueueId(name) not in self.made.driver.bound:
            self.open(name)
        elif self.rng.random() < 0.2:
            self.break_or_repair()
        elif self.rng.random() < 0.2:
            self.requests += 1
            device = DeviceId(self.rng.choice(self.devices))
            self.made.send(MigrateRequested(QueueId(name), device, self.requests))
        elif opened and self.rng.random() < 0.1:
            self.made.close(name)
        elif opened:
            for _ in range(self.rng.randint(1, 50)):
                self.made.submit(name)
        self.made.settle()
        self.made.run(self.rng.randint(0, 60 * MS))

    def open(self, name: str) -> None:
        rng = self.rng
        self.made.open(
            name,
            task_ns=rng.randint(MS // 10, 5 * MS),
            tasks=rng.randint(0, 100),
            pinned=rng.choice(self.devices) if rng.random() < 0.2 and self.lost is None else None,
            priority=rng.randint(-1, 1),
            weight=rng.choice([1, 100, 300]),
            memory_nbytes=rng.choice([0, 0, 1 << 20]),
            data={"host": rng.randint(0, 10**7)} if rng.random() < 0.5 else {},
        )

    def break_or_repair(self) -> None:
        if self.lost is None:
            self.lost = self.rng.choice(self.devices)
            self.made.send(DeviceLost(DeviceId(self.lost), "unplugged"))
        else:
            self.made.send(added(self.lost))
            self.lost = None


@pytest.mark.parametrize("policy", POLICIES)
@load
@given(seed=st.integers(0, 2**32))
def test_every_task_runs_once_and_in_order_whatever_happens(policy: str, seed: int) -> None:
    crowd = Crowd(policy, Random(seed))
    made = crowd.made
    for _ in range(60):
        crowd.act()
    if crowd.lost is not None:
        crowd.break_or_repair()
    for _ in range(100):
        made.run(S)
        if not any(made.queues[name].waits for name in made.driver.open):
            break
    for name in made.driver.open:
        work = made.queues[name]
        assert work.done == list(range(work.submitted)), f"{name} lost tasks"
    assert not made.driver.asked
    check_replay(made)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if not policy.startswith("pinned")])
def test_no_stream_is_without_a_queue_while_there_are_enough(policy: str) -> None:
    made = machine(policy, "cpu:0", "cpu:1", "opencl:0", streams=2)
    for index in range(6):
        made.open(f"1.{index}", endless=True)
        made.run(30 * MS)
    made.run(S)
    assert set(made.driver.bound.values()) == set(made.driver.streams)


@pytest.mark.parametrize("policy", MOVING)
@load
@given(
    homes=st.lists(st.sampled_from(["cpu:0", "cpu:1", "opencl:0"]), min_size=3, max_size=8),
    idle=st.integers(0, 4),
)
def test_a_policy_that_moves_queues_leaves_no_stream_idle_while_another_has_two_to_run(
    policy: str, homes: list[str], idle: int
) -> None:
    made = machine(policy, "cpu:0", "cpu:1", "opencl:0")
    for index in range(idle):
        made.open(f"9.{index}")
    for index, home in enumerate(homes):  # an operator puts them wherever he likes
        made.open(f"{index + 1}.0", endless=True)
        made.send(MigrateRequested(QueueId(f"{index + 1}.0"), DeviceId(home), index))
    made.run(3 * S)
    before = dict(made.busy_ns)
    made.run(S)
    for stream in made.driver.streams:
        assert made.busy_ns[stream] - before.get(stream, 0) > 0.9 * S


@pytest.mark.parametrize("policy", MOVING)
@load
@given(seed=st.integers(0, 2**32))
def test_a_queue_moves_at_most_once_in_its_minimum_residence(policy: str, seed: int) -> None:
    rng = Random(seed)
    made = machine(policy, "cpu:0", "cpu:1", "opencl:0")
    steady = [
        made.open(f"{n}.{k}", endless=True, priority=rng.randint(0, 1))
        for n in (1, 2)
        for k in range(rng.randint(1, 4))
    ]
    start = made.driver.now
    for _ in range(25):  # somebody of high priority comes and goes as fast as he likes
        made.open("3.0", endless=True, priority=2)
        made.run(rng.randint(1, 100 * MS))
        made.close("3.0")
        made.run(rng.randint(1, 100 * MS))
    most = len(steady) * (1 + (made.driver.now - start) // RESIDENCE_NS)
    assert made.driver.migrations <= most
    assert all(len(work.done) > 0 for work in steady if work.priority == 1)


def shares(made: Machine, groups: dict[str, list[Work]], duration_ns: int) -> dict[str, float]:
    """Let time pass and measure who got how much of the machine."""
    before = {name: sum(work.busy_ns for work in works) for name, works in groups.items()}
    made.run(duration_ns)
    got = {name: sum(work.busy_ns for work in works) - before[name] for name, works in groups.items()}
    return {name: ns / max(1, sum(got.values())) for name, ns in got.items()}


@load
@given(
    weights=st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=4),
    queues=st.integers(3, 5),
    task_ns=st.lists(st.integers(MS // 2, 6 * MS), min_size=4, max_size=4),
    streams=st.integers(1, 3),
)
def test_weighted_fair_divides_a_saturated_machine_by_weight(
    weights: list[int], queues: int, task_ns: list[int], streams: int
) -> None:
    made = machine("weighted_fair", *[f"cpu:{index}" for index in range(streams)])
    groups: dict[str, list[Work]] = {}
    for session, weight in enumerate(weights, start=1):
        groups[str(session)] = [
            made.open(f"{session}.{index}", endless=True, weight=100 * weight, task_ns=task_ns[session - 1])
            for index in range(queues)
        ]
    made.run(2 * S)
    got = shares(made, groups, 2 * S)
    for session, weight in enumerate(weights, start=1):
        assert got[str(session)] == pytest.approx(weight / sum(weights), abs=0.05)
    check_replay(made)


def test_weighted_fair_takes_the_weights_of_its_option() -> None:
    made = machine("weighted_fair=app1:1,app2:3", "cpu:0", "cpu:1")
    groups = {str(n): [made.open(f"{n}.{k}", endless=True) for k in range(2)] for n in (1, 2)}
    made.run(2 * S)
    assert shares(made, groups, 2 * S)["2"] == pytest.approx(0.75, abs=0.03)


def test_weighted_fair_is_calm_about_tasks_that_take_longer_than_a_tick() -> None:
    rng = Random(3)
    made = machine("weighted_fair=app1:1,app2:3", "cpu:0", "cpu:1")
    groups = {
        str(n): [made.open(f"{n}.{k}", endless=True, task_ns=rng.randint(5 * MS, 45 * MS)) for k in range(2)]
        for n in (1, 2)
    }
    made.run(3 * S)
    seen = len(made.driver.recorded)
    assert shares(made, groups, 10 * S)["2"] == pytest.approx(0.75, abs=0.05)
    steps = [QUEUES.read_step(line) for line in made.driver.recorded[seen:]]
    assert sum(isinstance(decision, Weigh) for step in steps for decision in step.decisions) < 60


def test_weighted_fair_counts_an_application_over_all_devices() -> None:
    made = machine("weighted_fair", "cpu:0", "cpu:1")
    groups = {
        "many": [made.open(f"1.{k}", endless=True) for k in range(6)],
        "one": [made.open("2.0", endless=True, pinned="cpu:0")],
    }
    made.run(2 * S)
    assert shares(made, groups, 2 * S)["one"] == pytest.approx(0.5, abs=0.03)


def test_weighted_fair_lets_three_queues_take_turns_on_two_streams() -> None:
    made = machine("weighted_fair", "cpu:0", "cpu:1")
    groups = {str(n): [made.open(f"{n}.0", endless=True)] for n in (1, 2, 3)}
    made.run(5 * S)
    got = shares(made, groups, 10 * S)
    assert all(share == pytest.approx(1 / 3, abs=0.04) for share in got.values()), got


def test_weighted_fair_gives_what_an_application_cannot_use_to_the_others() -> None:
    made = machine("weighted_fair", "cpu:0", "cpu:1", "cpu:2")
    groups = {
        "greedy": [made.open(f"1.{k}", endless=True) for k in range(4)],
        "small": [made.open("2.0", endless=True, weight=10_000)],
    }
    made.run(2 * S)
    assert shares(made, groups, 2 * S)["small"] == pytest.approx(1 / 3, abs=0.03)


def elastic(n_low: int, *devices: str) -> tuple[Machine, list[Work]]:
    """Start with an application of low priority that has grown over all devices."""
    made = machine("elastic", *devices)
    low = [made.open(f"1.{index}", endless=True) for index in range(n_low)]
    made.run(S)
    return made, low


def on(made: Machine, *queues: str) -> set[str | None]:
    return {made.driver.device_of(queue) for queue in queues}


def test_elastic_lets_an_application_grow_on_to_idle_devices() -> None:
    made = machine("elastic", "cpu:0")
    for index in range(3):
        made.open(f"1.{index}", endless=True)
    made.run(S)
    made.send(added("cpu:1"))
    made.send(added("opencl:0"))
    made.run(S)
    assert on(made, "1.0", "1.1", "1.2") == {"cpu:0", "cpu:1", "opencl:0"}


def test_elastic_clears_a_device_for_a_higher_priority_and_grows_back_afterwards() -> None:
    made, low = elastic(4, "cpu:0", "cpu:1")
    assert on(made, "1.0", "1.1", "1.2", "1.3") == {"cpu:0", "cpu:1"}
    high = made.open("2.0", endless=True, priority=1)
    made.run(S // 2)
    mine = on(made, "2.0")
    assert not mine & on(made, "1.0", "1.1", "1.2", "1.3")
    before = high.busy_ns
    made.run(S)
    assert high.busy_ns - before > 0.99 * S
    done = sum(work.busy_ns for work in low)
    made.run(S)
    assert sum(work.busy_ns for work in low) - done > 0.99 * S
    made.close("2.0")
    made.run(S)
    assert on(made, "1.0", "1.1", "1.2", "1.3") == {"cpu:0", "cpu:1"}


def test_elastic_leaves_the_others_where_they_are_when_a_higher_priority_takes_every_device() -> None:
    made, low = elastic(2, "cpu:0", "cpu:1")
    before = made.driver.migrations
    high = [made.open(f"2.{index}", endless=True, priority=1) for index in range(2)]
    made.run(S)
    assert on(made, "2.0", "2.1") == {"cpu:0", "cpu:1"}
    assert made.driver.migrations <= before + 1  # while the first of them was there alone
    done = [work.busy_ns for work in high]
    made.run(S)
    assert all(work.busy_ns - ns > 0.99 * S for work, ns in zip(high, done, strict=True))
    made.close("2.0")
    made.close("2.1")
    done = [work.busy_ns for work in low]
    made.run(S)
    assert all(work.busy_ns - ns > 0.9 * S for work, ns in zip(low, done, strict=True))


def test_elastic_takes_no_device_for_a_queue_that_does_nothing() -> None:
    made, _ = elastic(2, "cpu:0", "cpu:1")
    made.open("2.0", priority=1)
    made.run(2 * S)
    assert on(made, "1.0", "1.1") == {"cpu:0", "cpu:1"}


def test_elastic_does_not_move_what_takes_longer_to_move_than_it_gains() -> None:
    made = machine("elastic", "opencl:0", "opencl:1")
    heavy = {"opencl:0": 10**11}
    made.open("1.0", endless=True, data=heavy)
    made.open("1.1", endless=True, data=heavy)
    made.send(MigrateRequested(QueueId("1.0"), DeviceId("opencl:0"), 1))
    made.send(MigrateRequested(QueueId("1.1"), DeviceId("opencl:0"), 2))
    made.run(3 * S)
    assert on(made, "1.0", "1.1") == {"opencl:0"}


def test_elastic_does_not_try_a_device_without_room_again_at_once() -> None:
    made = machine("elastic", "cpu:0")
    made.prepare_fails = lambda: True
    made.open("1.0", endless=True)
    made.open("1.1", endless=True)
    made.send(added("cpu:1"))
    made.run(5 * S)
    steps = [QUEUES.read_step(line) for line in made.driver.recorded[1:]]
    tries = [step.at_ns for step in steps for decision in step.decisions if isinstance(decision, Prepare)]
    assert len(tries) > 2
    assert all(
        later - earlier >= S for earlier, later in zip(tries, tries[2:], strict=False)
    )  # of two queues


@pytest.mark.parametrize("policy", MOVING)
def test_a_server_without_queues_is_left_alone(policy: str) -> None:
    made = machine(policy, "cpu:0")
    made.open("1.0", tasks=3)
    made.run(S)
    made.close("1.0")
    made.run(S)
    steps = len(made.driver.recorded)
    made.run(100 * S)
    assert len(made.driver.recorded) == steps
    made.send(Tick())
    assert len(made.driver.recorded) == steps + 1
