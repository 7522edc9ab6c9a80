"""A caller may have several tasks in hand, put them back, or give their queue up; none is lost, none ends twice."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from polymux.core.status import TaskStatus
from polymux.segment import SegmentError, TaskRecord, Worker, cycles
from tests.unit.segment.ring import SUBMITTED_SHIFT, Rings

BARRIER = 0
DEVICE_FAILED = int(TaskStatus.DEVICE_FAILED)


def bound(rings: Rings, n: int = 1, **options: Any) -> Worker:
    """A worker with the first n queues."""
    worker = Worker(0, None, spin_ns=0, **options)
    for queue in range(n):
        worker.bind(rings.segment, rings.indices[queue], str(queue))
    assert worker.next(block=False)[0] == "woken"
    return worker


def take(worker: Worker) -> TaskRecord:
    kind, task = worker.next(block=False)
    assert kind == "task"
    assert isinstance(task, TaskRecord)
    return task


def test_a_worker_that_must_not_sleep_says_that_it_is_idle() -> None:
    rings = Rings()
    worker = bound(rings)
    assert worker.next(block=False) == ("idle", None)
    rings.submit()
    worker.complete(take(worker), 0)
    assert worker.next(block=False) == ("idle", None)


def test_tasks_in_hand_end_in_order() -> None:
    rings = Rings()
    worker = bound(rings)
    for _ in range(3):
        rings.submit()
    tasks = [take(worker) for _ in range(3)]
    with pytest.raises(SegmentError, match="task 2 of queue 0 cannot end before task 1"):
        worker.complete(tasks[1], 0)
    for task in tasks:
        worker.complete(task, 0)
    assert rings.completed() == 3
    with pytest.raises(SegmentError, match="complete already"):
        worker.complete(tasks[0], 0)


def test_a_barrier_does_not_overtake_tasks_in_hand() -> None:
    rings = Rings(2)
    worker = bound(rings, 2)
    rings.submit()
    first = take(worker)
    rings.submit(0, BARRIER)
    rings.submit(1, BARRIER)
    barrier = take(worker)
    assert (barrier.queue, barrier.kernel_id) == ("0", BARRIER)
    assert worker.next(block=False) == ("idle", None)
    assert (rings.completed(0), rings.completed(1)) == (0, 1), "another queue's need not wait"
    worker.complete(first, 0)
    worker.complete(barrier, 0)
    assert rings.completed() == 2


def test_tasks_without_a_caller_do_not_keep_the_caller_from_those_in_hand() -> None:
    rings = Rings()
    worker = bound(rings)
    for _ in range(100):
        rings.submit(0, BARRIER)
    assert worker.next(block=False) == ("idle", None)
    assert 0 < rings.completed() < 100


def test_a_queue_is_let_go_of_when_its_last_task_in_hand_has_ended() -> None:
    rings = Rings()
    worker = bound(rings)
    for _ in range(3):
        rings.submit()
    first, second = take(worker), take(worker)
    assert worker.unbind("0")
    assert not worker.unbind("0"), "asked for already"
    assert worker.next(block=False) == ("woken", None)
    assert worker.next(block=False) == ("idle", None), "no more tasks are taken"
    worker.complete(first, 0)
    assert worker.next(block=False) == ("idle", None)
    worker.put_back(second)
    kind, (queue, tasks, *_) = worker.next(block=False)
    assert (kind, queue, tasks) == ("released", "0", 1)
    assert rings.segment.counters(rings.indices[0])["taken"] == 1


def test_tasks_go_back_last_first() -> None:
    rings = Rings()
    worker = bound(rings)
    for _ in range(2):
        rings.submit()
    first, second = take(worker), take(worker)
    with pytest.raises(SegmentError, match="task 2 of queue 0 is in hand; it goes back before task 1"):
        worker.put_back(first)
    with pytest.raises(SegmentError, match="2 tasks of queue 0 are in hand"):
        worker.give_up(second)
    worker.put_back(second)
    worker.put_back(first)
    assert worker.next(block=False) == ("idle", None), "held until somebody decides"
    worker.resume("0")
    assert worker.next(block=False)[0] == "woken"
    assert [take(worker).sequence, take(worker).sequence] == [1, 2]


def test_a_head_fails_when_the_tasks_before_it_have_ended() -> None:
    rings = Rings()
    worker = bound(rings)
    for _ in range(2):
        rings.submit()
    first, second = take(worker), take(worker)
    worker.put_back(second)
    worker.fail_head("0", 5, "no device has it")
    assert worker.next(block=False)[0] == "woken"
    assert worker.next(block=False) == ("idle", None)
    assert rings.completed() == 0
    worker.complete(first, 0)
    assert worker.next(block=False) == ("idle", None)
    assert rings.completed() == 2


@pytest.mark.parametrize("asked", ["before", "after", "never"])
def test_a_queue_that_is_given_up_is_released_once(asked: str) -> None:
    """Whoever asked for it meanwhile hears nothing more, and whoever binds it anew has it."""
    rings = Rings()
    worker = bound(rings)
    for _ in range(2):
        rings.submit()
    worker.complete(take(worker), 0)
    task = take(worker)
    if asked == "before":
        assert worker.unbind("0")
    tasks, busy_ns, waiting_ns, failed = worker.give_up(task)
    assert (tasks, failed) == (1, 0)
    assert busy_ns > 0
    assert waiting_ns >= 0
    if asked == "after":
        assert not worker.unbind("0")
    assert worker.stats()["queues"] == {}
    with pytest.raises(SegmentError, match="complete already"):
        worker.complete(task, 0)
    worker.bind(rings.segment, rings.indices[0], "0")
    assert worker.next(block=False)[0] == "woken"
    again = take(worker)
    assert again.sequence == 2
    worker.complete(again, 0)
    assert worker.unbind("0")
    assert worker.next(block=False)[0] == "released"


def test_time_in_the_queue_and_on_the_stream_is_told_per_queue() -> None:
    rings = Rings(2)
    worker = bound(rings, 2, trace_capacity=16)
    now = cycles() >> SUBMITTED_SHIFT
    rings.submit(0)
    rings.submit(1)
    for _ in range(2):
        task = take(worker)
        worker.complete(task, 0)
    stats = worker.stats()
    for queue in ("0", "1"):
        assert stats["queues"][queue]["tasks"] == 1
        assert stats["queues"][queue]["waiting_ns"] >= 0
    whole = sum(load["waiting_ns"] for load in stats["queues"].values())
    assert stats["waiting_ns"] == pytest.approx(whole, rel=0.01, abs=10)
    assert (cycles() >> SUBMITTED_SHIFT) >= now
    for _, _, _, submitted_ns, start_ns, end_ns in worker.drain_trace():
        assert submitted_ns <= start_ns <= end_ns


def test_tasks_in_hand_together_are_not_counted_twice() -> None:
    rings = Rings()
    worker = bound(rings, trace_capacity=16)
    for _ in range(8):
        rings.submit()
    for task in [take(worker) for _ in range(8)]:
        worker.complete(task, 0)
    spans = [(start_ns, end_ns) for *_, start_ns, end_ns in worker.drain_trace()]
    for (_, end_ns), (start_ns, _) in pairwise(spans):
        assert start_ns >= end_ns - 1000  # the rounding of a cycle's length


@pytest.mark.parametrize("lie", [1, -1, 2**31, 2**31 - 1, 2**30, -(2**20)])
def test_a_client_that_lies_about_when_it_submitted_has_waited_within_reason(lie: int) -> None:
    opened = cycles()
    rings = Rings()
    worker = bound(rings)
    for _ in range(3):
        rings.submit(stamp=((cycles() >> SUBMITTED_SHIFT) + lie) % 2**32)
        worker.complete(take(worker), 0)
    waiting_ns = worker.stats()["queues"]["0"]["waiting_ns"]
    assert 0 <= waiting_ns <= 3 * (cycles() - opened) * 10, "no longer than the queue is open"


def test_buffers_of_pending_tasks_are_told() -> None:
    rings = Rings()
    index = rings.indices[0]
    for slot in range(3):
        rings.buffer(slot, 4096, generation=slot)
    rings.submit(0, 999, [(0, 0, 1), (1, 1, 2)])
    rings.submit(0, 999, [(2, 2, 3)])
    rings.submit(0, 999, [(0, 9, 1), (1, 1, 1)])  # a stale reference: nothing from there on
    assert rings.segment.pending_refs(index, 10) == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
    assert rings.segment.pending_refs(index, 1) == [(0, 0, 1), (1, 1, 2)]
    assert rings.segment.pending_refs(index, 0) == []
    worker = bound(rings)
    task = take(worker)
    assert rings.segment.pending_refs(index, 10) == [(2, 2, 3)], "what is taken is not pending"
    worker.put_back(task)
    assert rings.segment.pending_refs(index, 1) == [(0, 0, 1), (1, 1, 2)]
    with pytest.raises(SegmentError, match="no open queue"):
        rings.segment.pending_refs(200, 1)


def test_all_tasks_in_hand_are_ended_for_a_caller_that_has_lost_count() -> None:
    rings = Rings(2)
    worker = bound(rings, 2)
    for _ in range(3):
        rings.submit(0)
    rings.submit(1)
    tasks = [take(worker) for _ in range(4)]
    worker.complete(next(task for task in tasks if task.queue == "0"), 0)
    rings.submit(1)
    assert worker.unbind("0")
    assert worker.next(block=False) == ("woken", None)
    worker.fail_in_hand(DEVICE_FAILED, "the thread failed")
    assert (rings.completed(0), rings.completed(1)) == (3, 1)
    kind, (queue, count, _, _, failed) = worker.next(block=False)
    assert (kind, queue, count, failed) == ("released", "0", 3, 2)
    worker.complete(take(worker), 0)
    worker.fail_in_hand(DEVICE_FAILED, "there is none")
    assert (rings.completed(0), rings.completed(1)) == (3, 2)


def test_a_timeline_that_nobody_reads_in_time_keeps_the_latest_tasks() -> None:
    rings = Rings()
    worker = bound(rings, trace_capacity=4)
    for _ in range(7):
        rings.submit()
        worker.complete(take(worker), 0)
    records = worker.drain_trace()
    assert [record[2] for record in records] == [4, 5, 6, 7]
    assert worker.trace_dropped == 3
    rings.submit()
    worker.complete(take(worker), 0)
    assert [record[2] for record in worker.drain_trace()] == [8]
