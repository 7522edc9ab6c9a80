"""Groups of queues share a stream in proportion to their weights; priority comes before, deadlines after."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from polymux.segment import SegmentError, Worker, cycles
from tests.unit.segment.ring import Rings

BUSY_CYCLES = 20_000
ROUNDING = 1.002
"""How well a worker that is some milliseconds old knows the length of a cycle."""


def run(worker: Worker, n: int, busy_cycles: int = BUSY_CYCLES) -> list[str]:
    """Take and complete tasks; the queues that had them, in order."""
    took = []
    for _ in range(n):
        kind, task = worker.next(block=False)
        assert kind == "task"
        end = cycles() + busy_cycles
        while cycles() < end:
            pass
        worker.complete(task, 0)
        took.append(task.queue)
    return took


def submit(rings: Rings, queues: Sequence[int], n: int) -> None:
    for queue in queues:
        for _ in range(n):
            rings.submit(queue)


def worker_of(rings: Rings, weights: Sequence[int], priorities: Sequence[int] | None = None) -> Worker:
    """A worker to which the queues are bound, each as a group of its own."""
    worker = Worker(0, None, spin_ns=0, trace_capacity=4096)
    for queue, weight in enumerate(weights):
        priority = priorities[queue] if priorities else 0
        worker.bind(rings.segment, rings.indices[queue], str(queue), priority, True, queue, weight)
    assert worker.next(block=False)[0] == "woken"
    return worker


def check_that_the_least_went_first(worker: Worker, weights: dict[str, int]) -> dict[str, float]:
    """By the measured times of all tasks so far; the virtual times at the end."""
    virtual = dict.fromkeys(weights, 0.0)
    for queue, _, _, _, start_ns, end_ns in worker.drain_trace():
        least = min(virtual.values())
        assert virtual[queue] <= least * ROUNDING + 1000, (queue, virtual)
        virtual[queue] += (end_ns - start_ns) * 100 / weights[queue]
    return virtual


@pytest.mark.parametrize("weights", [(100, 100), (100, 300), (1, 10_000), (250, 100, 50)])
def test_the_group_with_the_least_time_per_weight_goes_first(weights: tuple[int, ...]) -> None:
    rings = Rings(len(weights))
    submit(rings, range(len(weights)), 400)
    worker = worker_of(rings, weights)
    run(worker, 300)
    check_that_the_least_went_first(worker, {str(i): weight for i, weight in enumerate(weights)})
    busy = {queue: load["busy_ns"] for queue, load in worker.stats()["queues"].items()}
    assert sum(busy.values()) == pytest.approx(worker.stats()["busy_ns"], rel=1e-3)


def test_a_weight_changes_at_the_next_task_boundary() -> None:
    rings = Rings(2)
    submit(rings, (0, 1), 900)
    worker = worker_of(rings, (100, 100))
    run(worker, 20)
    check_that_the_least_went_first(worker, {"0": 100, "1": 100})
    worker.weigh("1", 10_000)
    assert worker.next(block=False)[0] == "woken"
    before = worker.stats()["queues"]
    run(worker, 200)
    after = worker.stats()["queues"]
    grown = {queue: after[queue]["busy_ns"] - before[queue]["busy_ns"] for queue in ("0", "1")}
    longest = max(end_ns - start_ns for *_, start_ns, end_ns in worker.drain_trace())
    assert grown["1"] / 100 >= grown["0"] - 3 * longest


def test_queues_of_one_group_share_as_one() -> None:
    rings = Rings(4)
    submit(rings, range(4), 300)
    worker = Worker(0, None, spin_ns=0, trace_capacity=4096)
    for queue in range(4):
        worker.bind(rings.segment, rings.indices[queue], str(queue), 0, True, int(queue > 0), 100)
    assert worker.next(block=False)[0] == "woken"
    run(worker, 300)
    virtual = [0, 0]
    for queue, _, _, _, start_ns, end_ns in worker.drain_trace():
        group = int(queue != "0")
        assert virtual[group] <= min(virtual) * ROUNDING + 1000
        virtual[group] += end_ns - start_ns
    counts = worker.stats()["queues"]
    others = [counts[str(i)]["tasks"] for i in (1, 2, 3)]
    assert max(others) - min(others) <= 1, "the queues of one group take turns"


def test_a_group_that_was_idle_gets_no_credit() -> None:
    rings = Rings(2)
    submit(rings, (0,), 200)
    worker = worker_of(rings, (100, 100))
    assert set(run(worker, 100)) == {"0"}
    worker.drain_trace()
    submit(rings, (1,), 200)
    run(worker, 100)
    virtual = {"0": 0.0, "1": 0.0}
    longest = 0
    for queue, _, _, _, start_ns, end_ns in worker.drain_trace():
        virtual[queue] += end_ns - start_ns
        longest = max(longest, end_ns - start_ns)
    assert abs(virtual["0"] - virtual["1"]) <= 3 * longest


def test_a_group_that_leaves_and_comes_back_has_not_forgotten_its_share() -> None:
    rings = Rings(2)
    submit(rings, (0, 1), 500)
    worker = worker_of(rings, (100, 100))
    for _ in range(30):
        kind, task = worker.next(block=False)
        assert kind == "task"
        if task.queue == "0":  # long tasks, and a new binding after each
            run_for = cycles() + 20 * BUSY_CYCLES
            while cycles() < run_for:
                pass
            worker.complete(task, 0)
            assert worker.unbind("0")
            assert worker.next(block=False)[0] == "released"
            worker.bind(rings.segment, rings.indices[0], "0", 0, True, 0, 100)
            while worker.next(block=False)[0] == "task":
                pytest.fail("a task before the wake-up")
        else:
            worker.complete(task, 0)
    check_that_the_least_went_first(worker, {"0": 100, "1": 100})


def test_priority_is_strict_whatever_the_weights() -> None:
    rings = Rings(3)
    submit(rings, (0, 1), 100)
    worker = worker_of(rings, (10_000, 1, 10_000), (0, 1, 0))
    assert set(run(worker, 50)) == {"1"}
    for _ in range(10):
        rings.submit(2, priority=2)
    assert run(worker, 10) == ["2"] * 10, "a task's own priority counts too"
    assert set(run(worker, 50)) == {"1"}
    assert set(run(worker, 10)) == {"0"}


def test_within_a_group_the_earliest_deadline_goes_first() -> None:
    rings = Rings(3)
    for queue, deadline_ns in enumerate((30, 10, 20)):
        rings.submit(queue, deadline_ns=deadline_ns)
    worker = Worker(0, None, spin_ns=0)
    for queue in range(3):
        worker.bind(rings.segment, rings.indices[queue], str(queue), group=7)
    assert worker.next(block=False)[0] == "woken"
    assert run(worker, 3, 0) == ["1", "2", "0"]


@pytest.mark.parametrize("weight", [0, 10_001, 2**31])
def test_a_weight_that_cannot_be_is_refused(weight: int) -> None:
    rings = Rings()
    worker = Worker(0, None, spin_ns=0)
    with pytest.raises(SegmentError, match=f"weight {weight} is outside 1 to 10000"):
        worker.bind(rings.segment, rings.indices[0], "0", weight=weight)
    with pytest.raises(SegmentError, match="outside"):
        worker.weigh("0", weight)
