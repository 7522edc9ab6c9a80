"""Work that takes long holds up only what the same connection asked for after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from polymux.server.slow_work import MAX_WAITING, SlowWork


@pytest.fixture
def slow() -> Iterator[SlowWork]:
    made = SlowWork()
    yield made
    assert made.end(30)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def test_work_of_one_is_done_in_order(slow: SlowWork) -> None:
    done: list[int] = []
    last = threading.Event()
    for number in range(100):
        assert slow.submit("a", lambda number=number: done.append(number))
    assert slow.submit("a", last.set)
    assert last.wait(30)
    assert done == list(range(100))


def test_work_of_others_does_not_wait_for_it(slow: SlowWork, gate: threading.Event) -> None:
    for number in range(50):
        assert slow.submit(number, lambda: gate.wait(60))
    done = threading.Event()
    assert slow.submit("other", done.set)
    assert done.wait(30)


def test_what_one_may_have_waiting_is_bounded(slow: SlowWork, gate: threading.Event) -> None:
    begun = threading.Event()
    slow.submit("a", lambda: (begun.set(), gate.wait(60)))
    assert begun.wait(30)
    assert all(slow.submit("a", lambda: None) for _ in range(MAX_WAITING))
    assert not slow.submit("a", lambda: None)
    assert slow.submit("b", lambda: None)


def test_what_waits_is_dropped_when_its_owner_is_gone(slow: SlowWork, gate: threading.Event) -> None:
    done: list[str] = []
    begun = threading.Event()
    slow.submit("a", lambda: (begun.set(), gate.wait(60)))
    slow.submit("a", lambda: done.append("waited"))
    assert begun.wait(30)
    slow.forget("a")
    slow.forget("unknown")
    gate.set()
    assert slow.end(30)
    assert done == []


def test_the_end_says_whether_something_goes_on(gate: threading.Event) -> None:
    slow = SlowWork()
    slow.submit("a", lambda: gate.wait(60))
    assert not slow.end(0)
    gate.set()
    assert slow.end(30)


def test_nothing_is_kept_when_the_work_is_done(slow: SlowWork) -> None:
    before = threading.active_count()
    for number in range(100):
        slow.submit(number, lambda: None)
    assert slow.end(30)
    assert threading.active_count() <= before
    assert slow._waiting == {}
