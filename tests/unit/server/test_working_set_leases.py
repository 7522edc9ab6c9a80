"""Leases that hold more than one task needs, for the tasks that follow."""

from __future__ import annotations

import threading

import pytest

from polymux.server.placement import HOST, READ, WRITE
from tests.unit.server.fakes import Application, Machine
from tests.unit.server.test_residency import go_home, run


def test_what_is_held_as_well_is_taken_only_where_it_is_there() -> None:
    machine, app = Machine(100, 100), Application(1, [10, 10, 10])
    run(machine, 1, app, 0, value=2)
    run(machine, 2, app, 1, value=3)
    lease = machine.residency.acquire(
        1, [app.want(2, READ)], "q", also=[app.want(slot, WRITE) for slot in range(3)]
    )
    assert sorted(want.home.slot for want in lease.wants) == [0, 2]
    assert (app.location(0), app.location(1)) == (1, 2)
    machine.residency.release(lease)
    assert run(machine, HOST, app, 0) == 2
    assert run(machine, HOST, app, 1) == 3


def test_what_is_held_as_well_is_left_to_whoever_waits_for_it() -> None:
    machine, app = Machine(100, 100), Application(1, [10, 10])
    run(machine, 1, app, 0, value=2)
    run(machine, 1, app, 1, value=3)
    holder = machine.residency.acquire(1, [app.want(0, READ | WRITE)], "q")
    waiting = threading.Thread(target=go_home, args=(machine, app, 0))
    waiting.start()
    while not machine.residency._waiters:
        pass
    lease = machine.residency.acquire(1, [app.want(1, READ)], "r", also=[app.want(0, READ)])
    assert [want.home.slot for want in lease.wants] == [1]
    machine.residency.release(holder)
    waiting.join(30)
    assert not waiting.is_alive()
    machine.residency.release(lease)


@pytest.mark.parametrize("place", [HOST, 2])
def test_what_is_held_for_further_tasks_is_written_nowhere_else_until_they_are_through(place: int) -> None:
    machine, app = Machine(100, 100), Application(1, [10])
    assert run(machine, 1, app, 0) == 0
    lease = machine.residency.acquire(1, [app.want(0, READ)], "q", also=[app.want(0, READ)])
    assert run(machine, 2, app, 0) == 0  # reading is free
    writing = threading.Thread(target=run, args=(machine, place, app, 0, 7))
    writing.start()
    while not machine.residency._waiters:
        pass
    assert lease.memory(0)[0] == 0
    machine.residency.release(lease)
    writing.join(30)
    assert not writing.is_alive()
    assert run(machine, 1, app, 0) == 7
    run(machine, 2, app, 0, value=8)  # nothing is held any more
