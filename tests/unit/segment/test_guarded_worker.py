"""A worker of a guarded device asks before it takes a task, and says when it has none any more."""

from __future__ import annotations

from tests.unit.segment.ring import Rings
from tests.unit.segment.test_tasks_in_hand import bound, take

BARRIER = 0


def test_a_worker_that_is_not_guarded_asks_nobody() -> None:
    rings = Rings()
    worker = bound(rings)
    rings.submit(0, BARRIER)
    assert worker.next(block=False) == ("idle", None)
    assert rings.completed() == 1


def test_a_guarded_worker_begins_inside_and_says_when_it_has_nothing_to_do() -> None:
    rings = Rings()
    worker = bound(rings)
    rings.submit(0, BARRIER)
    worker.guard(True)
    assert worker.next()[0] == "woken"
    assert worker.next() == ("drained", None)
    assert rings.completed() == 1, "what was there before the guard needs no leave"


def test_a_guarded_worker_asks_once_and_takes_nothing_until_it_is_let_in() -> None:
    rings = Rings()
    worker = bound(rings)
    worker.guard(True)
    assert [worker.next()[0] for _ in range(2)] == ["woken", "drained"]
    rings.submit(0, BARRIER, priority=3)
    assert worker.next() == ("wanted", (3, None, 100))
    assert worker.next(block=False) == ("idle", None)
    assert rings.completed() == 0
    worker.let_in()
    assert [worker.next()[0] for _ in range(2)] == ["woken", "drained"]
    assert rings.completed() == 1


def test_a_guarded_worker_asks_again_when_a_more_urgent_task_comes() -> None:
    rings = Rings(2)
    worker = bound(rings, 2)
    worker.guard(True)
    assert [worker.next()[0] for _ in range(2)] == ["woken", "drained"]
    rings.submit(0, BARRIER)
    assert worker.next() == ("wanted", (0, None, 100))
    rings.submit(1, BARRIER, priority=-1)
    assert worker.next(block=False) == ("idle", None)
    rings.submit(1, BARRIER, deadline_ns=77)
    assert worker.next(block=False) == ("idle", None), "the head of a queue counts"
    worker.let_in()
    assert [worker.next()[0] for _ in range(2)] == ["woken", "drained"]
    assert (rings.completed(0), rings.completed(1)) == (1, 2)


def test_the_deadline_of_the_first_task_is_told() -> None:
    rings = Rings(2)
    worker = bound(rings, 2)
    worker.guard(True)
    assert [worker.next()[0] for _ in range(2)] == ["woken", "drained"]
    rings.submit(0, BARRIER, deadline_ns=99)
    assert worker.next() == ("wanted", (0, 99, 100))
    rings.submit(1, BARRIER, deadline_ns=77)
    assert worker.next() == ("wanted", (0, 77, 100))


def test_a_worker_that_is_told_to_leave_does_so_when_no_task_is_in_hand_and_asks_anew() -> None:
    rings = Rings()
    worker = bound(rings)
    worker.guard(True)
    rings.submit()
    rings.submit()
    assert worker.next()[0] == "woken"
    task = take(worker)
    worker.leave()
    assert worker.next(block=False)[0] == "woken"
    assert worker.next(block=False) == ("idle", None)
    worker.complete(task, 0)
    assert worker.next()[0] == "wanted"
    worker.let_in()
    assert worker.next()[0] == "woken"
    worker.complete(take(worker), 0)
    worker.leave()
    assert [worker.next()[0] for _ in range(2)] == ["woken", "drained"]


def test_leave_that_comes_when_the_tasks_are_gone_lets_nobody_in() -> None:
    rings = Rings()
    worker = bound(rings)
    worker.guard(True)
    assert [worker.next()[0] for _ in range(2)] == ["woken", "drained"]
    worker.let_in()
    rings.submit(0, BARRIER)
    assert worker.next()[0] == "woken"
    assert worker.next()[0] == "wanted"
    worker.leave()
    assert worker.next(block=False)[0] == "woken"
    assert worker.next(block=False) == ("idle", None), "it asks still"


def test_a_queue_that_goes_while_its_tasks_wait_takes_its_wish_back() -> None:
    rings = Rings()
    worker = bound(rings)
    worker.guard(True)
    assert [worker.next()[0] for _ in range(2)] == ["woken", "drained"]
    rings.submit()
    assert worker.next()[0] == "wanted"
    worker.unbind("0")
    assert worker.next()[0] == "released"
    assert worker.next()[0] == "woken"
    assert worker.next() == ("drained", None)


def test_tasks_that_wait_run_when_the_guard_ends() -> None:
    rings = Rings()
    worker = bound(rings)
    worker.guard(True)
    assert [worker.next()[0] for _ in range(2)] == ["woken", "drained"]
    rings.submit(0, BARRIER)
    assert worker.next()[0] == "wanted"
    worker.guard(False)
    assert worker.next(block=False)[0] == "woken"
    assert worker.next(block=False) == ("idle", None)
    assert rings.completed() == 1
