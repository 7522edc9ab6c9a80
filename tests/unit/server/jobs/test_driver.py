"""The driver of jobs: who is told what when jobs and tasks want the same device."""

from __future__ import annotations

import pytest

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId, StreamId
from polymux.core.jobs.model import EVERYWHERE, PreemptionLevel
from polymux.segment import GATE_BOUNDARY, GATE_OPEN, GATE_OVER, GATE_STEP
from tests.unit.server.jobs.rig import Process, Rig, Stream, device_number, gate, process_of

STOP = (PreemptionLevel.STOP,)
OTHER = StreamId("cpu:0/1")


def test_a_job_waits_at_its_gate_until_it_asks_and_has_the_device_to_itself() -> None:
    rig = Rig()
    lease = rig.open()
    assert gate(lease) == GATE_BOUNDARY
    assert lease.state == "no work"
    rig.driver.wait(lease, between_runs=True)
    assert (gate(lease), lease.state, lease.device) == (GATE_OPEN, "runs", "cpu:0")


def test_without_a_job_tasks_ask_nobody() -> None:
    rig = Rig()
    assert rig.told() == []
    lease = rig.open()
    assert rig.told()[0] == "guard"
    rig.driver.close(lease)
    assert rig.told()[-1] == "unguard"


def test_a_job_is_stopped_at_once_for_tasks_and_continued_after_them() -> None:
    rig = Rig()
    lease = rig.open()
    rig.driver.wait(lease, between_runs=True)
    rig.told()
    rig.tasks()
    assert process_of(lease).state == "stopped"
    assert (lease.state, rig.told()) == ("stopped", ["let in"])
    assert gate(lease) == GATE_OPEN, "it was stopped where it was"
    rig.tasks_end()
    assert (process_of(lease).state, lease.state) == ("runs", "runs")
    assert lease.figures.taken_back == {"stop": 1}
    assert [held.how for held in rig.held] == ["stop"]


def test_a_job_that_only_gives_way_by_itself_is_asked_and_tasks_wait_for_it() -> None:
    rig = Rig()
    lease = rig.open(EVERYWHERE)
    rig.driver.wait(lease, between_runs=True)
    rig.told()
    rig.tasks()
    assert gate(lease) in (GATE_BOUNDARY, GATE_STEP)
    assert rig.told() == []
    rig.driver.wait(lease, between_runs=True)
    assert rig.told() == ["let in"]
    assert lease.state == "waits"
    rig.tasks_end()
    assert gate(lease) == GATE_OPEN
    assert rig.driver.task_waits()[DeviceId("cpu:0")]["count"] >= 1


def test_a_job_of_higher_priority_keeps_tasks_waiting_and_does_not_wait_for_less_urgent_ones() -> None:
    rig = Rig()
    lease = rig.open(priority=5)
    rig.told()
    rig.tasks(priority=1)
    assert rig.told() == ["let in"]
    rig.driver.wait(lease, between_runs=True)
    assert rig.told() == ["leave"], "they ask anew, and the policy says who comes first"
    rig.tasks_end()
    assert lease.holds
    rig.tasks(priority=1)
    assert (rig.told(), lease.state) == ([], "runs")
    rig.driver.rest(lease)
    assert rig.told() == ["let in"]


def test_a_job_that_has_no_work_leaves_the_device_to_the_next() -> None:
    rig = Rig()
    first, second = rig.open(EVERYWHERE), rig.open(EVERYWHERE)
    rig.driver.wait(first, between_runs=True)
    rig.driver.wait(second, between_runs=True)
    assert (first.holds, second.holds) == (True, False)
    rig.driver.rest(first)
    assert (first.holds, second.holds) == (False, True)
    assert gate(first) == GATE_BOUNDARY


def test_a_job_that_is_gone_leaves_the_device_to_the_next_and_its_process_goes_on() -> None:
    rig = Rig()
    first, second = rig.open(), rig.open()
    rig.driver.wait(first, between_runs=True)
    rig.driver.wait(second, between_runs=True)
    rig.tasks()
    assert process_of(first).state == "stopped"
    rig.driver.close(first)
    assert (process_of(first).state, process_of(first).closed) == ("runs", True)
    rig.tasks_end()
    assert second.holds


def test_waiting_without_being_asked_opens_the_gate_again() -> None:
    rig = Rig()
    lease = rig.open()
    rig.driver.wait(lease, between_runs=True)
    rig.driver.wait(lease, between_runs=False)
    assert (gate(lease), lease.figures.grants) == (GATE_OPEN, 1)


def test_a_program_that_knows_of_no_lease_is_held_up_until_its_turn_and_bound_to_its_device() -> None:
    rig = Rig()
    program = Process()
    lease = rig.open(STOP, process=program)
    assert program.state == "stopped"
    rig.driver.wait(lease, between_runs=True)
    assert (program.state, program.cores) == ("runs", (0, 1))


def test_what_can_run_nowhere_is_refused_with_the_sizes_and_leaves_nothing() -> None:
    rig = Rig(memory_nbytes=1000)
    with pytest.raises(InvalidRequest, match="2000 bytes.*1000"):
        rig.open(memory_nbytes=2000, name="large")
    assert rig.driver.leases() == []
    assert rig.told() == []


def test_a_lease_inside_another_one_stands_for_it() -> None:
    rig = Rig()
    program = Process()
    outer = rig.open(STOP, process=program)
    rig.driver.wait(outer, between_runs=True)
    inner = rig.open(process=program, outer=outer)
    rig.driver.wait(inner, between_runs=True)
    assert (outer.state, inner.state) == ("lent", "runs")
    rig.tasks()
    assert program.state == "stopped"
    rig.tasks_end()
    rig.driver.close(inner)
    assert (outer.state, program.state, program.closed) == ("runs", "runs", False)
    rig.driver.close(outer)
    assert program.closed


def test_the_outer_lease_may_end_first() -> None:
    rig = Rig()
    program = Process()
    outer = rig.open(STOP, process=program)
    inner = rig.open(process=program, outer=outer)
    rig.driver.close(outer)
    assert not program.closed
    rig.driver.wait(inner, between_runs=True)
    assert inner.holds
    rig.driver.close(inner)
    assert program.closed


def test_a_job_on_a_lost_device_gives_way_and_goes_on_elsewhere() -> None:
    rig = Rig(devices=2)
    lease = rig.open(EVERYWHERE)
    rig.driver.wait(lease, between_runs=True)
    was = lease.device
    assert was is not None
    rig.driver.lose(was, "it broke")
    assert gate(lease) in (GATE_BOUNDARY, GATE_STEP)
    rig.driver.wait(lease, between_runs=True)
    assert lease.holds
    assert lease.device != was
    assert device_number(lease) == (1 if was == "cpu:0" else 0)
    assert lease.figures.moves == 1


def test_a_stopped_job_that_goes_on_elsewhere_is_put_there_and_looks_at_its_next_boundary() -> None:
    rig = Rig(devices=2)
    lease = rig.open()
    rig.driver.wait(lease, between_runs=True)
    was = lease.device
    assert was is not None
    rig.tasks(device=was)
    if not lease.holds:  # the policy may wait for the device, which is lost then
        rig.driver.lose(was, "it broke")
    assert lease.holds
    assert lease.device != was
    assert process_of(lease).state == "runs"
    assert process_of(lease).cores == rig.driver.cores[lease.device]
    assert gate(lease) == GATE_BOUNDARY
    rig.driver.wait(lease, between_runs=False)
    assert gate(lease) == GATE_OPEN


def test_what_is_over_says_why_at_the_gate() -> None:
    rig = Rig()
    lease = rig.open()
    rig.driver.wait(lease, between_runs=True)
    rig.driver.close(lease)
    assert (gate(lease), lease.state) == (GATE_OVER, "over")
    rig.driver.close(lease)
    rig.driver.wait(lease, between_runs=True)
    rig.driver.rest(lease)
    rig.driver.report(lease, 1, 1)


def test_the_end_of_the_driver_lets_everybody_go_on() -> None:
    rig = Rig()
    lease = rig.open()
    rig.driver.wait(lease, between_runs=True)
    rig.tasks()
    rig.driver.end()
    assert process_of(lease).state == "runs"
    assert rig.told()[-1] == "unguard"
    with pytest.raises(InvalidRequest, match="has ended"):
        rig.open()


def test_a_job_that_is_moved_counts_its_times() -> None:
    rig = Rig()
    lease = rig.open()
    rig.driver.report(lease, 10, 7)
    rig.driver.report(lease, 0, 3)
    assert (lease.figures.run_ns, lease.figures.boundary_ns) == (10, 7)
    rig.driver.wait(lease, between_runs=True)
    assert [(session, device) for session, device, _ in rig.driver.holding()] == [(1, "cpu:0")]
    rig.driver.rest(lease)
    assert rig.driver.holding() == []
    assert rig.held[0].end_ns >= rig.held[0].start_ns


def two_streams() -> tuple[Rig, Stream, Stream]:
    rig = Rig()
    other = Stream()
    rig.driver.add_stream(DeviceId("cpu:0"), OTHER, other)
    return rig, rig.streams[DeviceId("cpu:0")], other


def test_tasks_of_another_stream_join_those_that_have_the_device() -> None:
    rig, first, second = two_streams()
    lease = rig.open()
    rig.driver.drained(DeviceId("cpu:0"), OTHER)
    rig.driver.wait(lease, between_runs=True)
    rig.tasks()
    rig.driver.wanted(DeviceId("cpu:0"), OTHER, 0, None)
    assert (first.told[-1], second.told[-1]) == ("let in", "let in")
    rig.tasks_end()
    assert process_of(lease).state == "stopped", "those of the other stream have it still"
    rig.driver.drained(DeviceId("cpu:0"), OTHER)
    assert lease.holds


def test_tasks_that_come_while_others_are_told_to_leave_wait_with_them() -> None:
    rig, first, second = two_streams()
    lease = rig.open(priority=5)
    rig.driver.drained(DeviceId("cpu:0"), OTHER)
    rig.tasks(priority=1)
    rig.driver.wait(lease, between_runs=True)
    assert first.told[-1] == "leave"
    second.told.clear()
    rig.driver.wanted(DeviceId("cpu:0"), OTHER, 1, None)
    assert second.told == []
    rig.tasks_end()
    rig.driver.close(lease)
    assert second.told[-1] == "unguard"
