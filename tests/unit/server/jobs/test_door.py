"""The door of a device counts who is inside and who waits."""

from __future__ import annotations

from polymux.core.ids import DeviceId, StreamId
from polymux.server.jobs.door import Door
from tests.unit.server.jobs.rig import Stream

A, B = StreamId("cpu:0/0"), StreamId("cpu:0/1")


def door() -> tuple[Door, Stream, Stream]:
    made, a, b = Door(DeviceId("cpu:0")), Stream(), Stream()
    made.add(A, a)
    made.add(B, b)
    return made, a, b


def test_streams_are_inside_when_the_guard_begins_and_leave_one_by_one() -> None:
    made, *_ = door()
    assert made.guard(0)
    assert made.occupied
    made.drained(A, 5)
    assert made.busy
    made.drained(B, 5)
    assert not made.busy


def test_a_device_without_streams_has_nobody_inside() -> None:
    assert not Door(DeviceId("cpu:0")).guard(0)


def test_the_most_urgent_of_all_streams_counts() -> None:
    made, *_ = door()
    made.guard(0)
    made.drained(A, 0)
    made.drained(B, 0)
    made.ask(A, 1, None, 10)
    assert made.urgency() == (1, None, 100)
    made.ask(B, 4, 900, 11)
    assert made.urgency() == (4, None, 100), "one of them is to start as soon as possible"
    made.ask(A, 1, 500, 12)
    assert made.urgency() == (4, 500, 100)


def test_a_deadline_is_that_of_the_end_so_that_the_time_that_tasks_take_is_taken_off() -> None:
    made, *_ = door()
    made.guard(0)
    made.drained(A, 0)
    made.drained(B, 0)
    made.ask(A, 0, None, 10)
    made.let_in(20)
    made.drained(A, 120)
    assert not made.busy
    made.ask(A, 0, 1000, 200)
    assert made.urgency() == (0, 900, 100)


def test_only_who_waits_is_let_in_and_how_long_it_waited_is_counted() -> None:
    made, a, b = door()
    made.guard(0)
    made.drained(A, 0)
    made.drained(B, 0)
    made.ask(A, 0, None, 10)
    made.ask(A, 1, None, 15)
    made.let_in(30)
    made.let_in(40)
    assert (a.told, b.told) == (["guard", "let in"], ["guard"])
    assert made.waits.described() == {
        "count": 1,
        "total_ns": 20,
        "p50_ns": 20,
        "p99_ns": 20,
        "longest_ns": 20,
    }


def test_who_is_told_to_leave_is_told_once() -> None:
    made, a, b = door()
    made.guard(0)
    made.drained(B, 0)
    made.leave()
    made.leave()
    assert (a.told, b.told) == (["guard", "leave"], ["guard"])
    made.drained(A, 1)
    assert not made.leaving
    made.leave()
    assert a.told == ["guard", "leave"]


def test_the_end_of_the_guard_tells_whether_anybody_was_there() -> None:
    made, a, _ = door()
    made.guard(0)
    assert made.unguard()
    made.guard(0)
    made.drained(A, 0)
    made.drained(B, 0)
    assert not made.unguard()
    assert a.told == ["guard", "unguard", "guard", "unguard"]


def test_the_weight_is_that_of_whose_tasks_are_the_most_urgent() -> None:
    made, *_ = door()
    made.guard(0)
    made.drained(A, 0)
    made.drained(B, 0)
    made.ask(A, 1, None, 10, 300)
    made.ask(B, 1, None, 10, 50)
    assert made.urgency() == (1, None, 350)
    made.ask(B, 2, None, 11, 50)
    assert made.urgency() == (2, None, 50)
