"""Where buffers are: one valid copy, spilling, waiting, errors that name sizes and owners."""

from __future__ import annotations

import threading

import pytest

from polymux.core.errors import Closed
from polymux.server.placement import READ, WRITE
from polymux.server.placing import BufferChangedError, DoesNotFitError
from tests.unit.server.fakes import Application, Machine

HOST = 0


def run(machine: Machine, location: int, app: Application, slot: int, value: int | None = None) -> int:
    """Let a task read a buffer at a place, or fill it with a value there; returns what it saw first."""
    access = READ if value is None else READ | WRITE
    lease = machine.residency.acquire(location, [app.want(slot, access)], "q")
    content = app.content(slot) if location == HOST else lease.memory(slot)
    seen = int(content[0])
    if value is not None:
        content[:] = value
    machine.residency.release(lease)
    return seen


def test_a_buffer_that_is_written_on_a_device_is_read_at_home_and_elsewhere() -> None:
    machine, app = Machine(100, 100), Application(1, [10])
    app.content(0)[:] = 1
    assert run(machine, 1, app, 0, value=2) == 1
    assert app.location(0) == 1
    assert run(machine, 2, app, 0, value=3) == 2
    assert app.location(0) == 2
    assert run(machine, HOST, app, 0) == 3
    assert app.location(0) == HOST


def test_memory_is_taken_only_when_a_task_needs_it_and_given_back_when_the_buffer_goes_home() -> None:
    machine, app = Machine(100), Application(1, [10])
    assert machine.devices[1].used_nbytes == 0
    run(machine, 1, app, 0)
    assert machine.devices[1].used_nbytes == 10
    run(machine, HOST, app, 0)
    assert machine.devices[1].used_nbytes == 0


def test_going_home_unmodified_costs_no_copy() -> None:
    machine, app = Machine(100), Application(1, [10])
    run(machine, 1, app, 0)
    run(machine, HOST, app, 0)
    assert [transfer.into for transfer in machine.transfers] == [True]


def test_what_a_task_only_writes_is_not_copied_in() -> None:
    machine, app = Machine(100), Application(1, [10])
    lease = machine.residency.acquire(1, [app.want(0, WRITE)])
    lease.memory(0)[:] = 7
    machine.residency.release(lease)
    assert machine.transfers == []
    assert run(machine, HOST, app, 0) == 7


def test_a_buffer_that_is_input_and_output_is_one_buffer() -> None:
    machine, app = Machine(10), Application(1, [10])
    app.content(0)[:] = 5
    lease = machine.residency.acquire(1, [app.want(0, READ), app.want(0, WRITE)])
    assert lease.memory(0)[0] == 5
    lease.memory(0)[:] = 6
    machine.residency.release(lease)
    assert run(machine, HOST, app, 0) == 6


def test_the_buffer_used_longest_ago_is_spilled_and_comes_back_with_its_content() -> None:
    machine, app = Machine(20), Application(1, [10, 10, 10])
    for slot in range(3):
        run(machine, 1, app, slot, value=slot + 1)
    assert [app.location(slot) for slot in range(3)] == [HOST, 1, 1]
    assert run(machine, 1, app, 0) == 1
    assert [app.location(slot) for slot in range(3)] == [1, HOST, 1]


def test_using_a_buffer_makes_it_the_last_to_be_spilled() -> None:
    machine, app = Machine(20), Application(1, [10, 10, 10])
    for slot in (0, 1, 0, 2):
        run(machine, 1, app, slot)
    assert [app.location(slot) for slot in range(3)] == [1, HOST, 1]


def test_a_task_that_needs_more_than_the_device_has_fails_with_sizes_and_owners() -> None:
    machine, app, other = Machine(20), Application(1, [15, 10]), Application(2, [5])
    run(machine, 1, other, 0)
    with pytest.raises(DoesNotFitError) as caught:
        machine.residency.acquire(1, [app.want(0), app.want(1)])
    for text in ("25 B", "20 B", "15 B", "10 B", "'app1'", "5 B is held by 'app2'", "fake:0"):
        assert text in str(caught.value)
    assert machine.residency.usage()[1].used_nbytes == 5


def test_when_the_driver_refuses_everything_idle_is_spilled_before_the_task_fails() -> None:
    machine, app = Machine(100), Application(1, [10, 10])
    run(machine, 1, app, 0, value=4)
    machine.devices[1].refusals = 1
    run(machine, 1, app, 1)
    assert app.location(0) == HOST
    machine.devices[1].refusals = 2
    with pytest.raises(DoesNotFitError, match="its driver said: the driver refuses"):
        run(machine, 1, app, 0)
    assert run(machine, 1, app, 0) == 4


def test_a_task_waits_for_memory_that_a_running_task_holds() -> None:
    machine, app = Machine(10), Application(1, [10, 10])
    lease = machine.residency.acquire(1, [app.want(0)])
    done = threading.Event()
    thread = threading.Thread(target=lambda: (run(machine, 1, app, 1), done.set()))
    thread.start()
    assert not done.is_set()
    machine.residency.release(lease)
    thread.join(10)
    assert done.is_set()
    assert [app.location(slot) for slot in (0, 1)] == [HOST, 1]


def test_a_task_waits_for_a_buffer_that_a_task_on_another_device_uses() -> None:
    machine, app = Machine(10, 10), Application(1, [10])
    lease = machine.residency.acquire(1, [app.want(0, READ | WRITE)])
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(run(machine, 2, app, 0)))
    thread.start()
    lease.memory(0)[:] = 9
    machine.residency.release(lease)
    thread.join(10)
    assert seen == [9]


def test_young_tasks_do_not_overtake_a_waiting_one_for_ever() -> None:
    machine, app = Machine(20), Application(1, [20, 5, 5])
    first = machine.residency.acquire(1, [app.want(1)])
    large = threading.Event()
    waiting = threading.Thread(target=lambda: (run(machine, 1, app, 0), large.set()))
    waiting.start()
    while not machine.residency._waiters:
        pass
    overtaking = 0
    held = first
    while not large.is_set() and overtaking < 1000:
        young: list[object] = []

        def acquire(young: list[object] = young) -> None:
            young.append(machine.residency.acquire(1, [app.want(2)]))

        thread = threading.Thread(target=acquire)
        thread.start()
        thread.join(0.05)
        if not young:  # it may not overtake any more: the large one is next
            machine.residency.release(held)
            thread.join(10)
            machine.residency.release(young[0])  # type: ignore[arg-type]
            break
        overtaking += 1
        machine.residency.release(young[0])  # type: ignore[arg-type]
    waiting.join(10)
    assert large.is_set()
    assert overtaking < 1000


def test_a_failed_copy_leaves_everything_where_it_was() -> None:
    machine, app = Machine(10, 10), Application(1, [10, 10])
    run(machine, 1, app, 0, value=8)
    machine.devices[1].failures = 1
    with pytest.raises(OSError, match="the driver fails"):
        run(machine, 2, app, 0)
    assert app.location(0) == 1
    assert run(machine, 2, app, 0) == 8
    machine.devices[1].failures = 1
    with pytest.raises(OSError, match="the driver fails"):
        run(machine, 1, app, 1)
    assert machine.devices[1].used_nbytes == machine.residency.usage()[1].used_nbytes == 0


def test_freeing_a_buffer_gives_its_device_memory_back_at_once() -> None:
    machine, app = Machine(10), Application(1, [10])
    run(machine, 1, app, 0)
    machine.residency.forget(app.home(0).key, 0)
    assert machine.devices[1].used_nbytes == 0


def test_freeing_a_buffer_while_a_task_runs_gives_its_memory_back_afterwards() -> None:
    machine, app = Machine(10), Application(1, [10])
    lease = machine.residency.acquire(1, [app.want(0)])
    machine.residency.forget(app.home(0).key, 0)
    assert machine.devices[1].used_nbytes == 10
    machine.residency.release(lease)
    assert machine.devices[1].used_nbytes == machine.residency.usage()[1].used_nbytes == 0


def test_a_freed_buffer_is_not_written_over_the_one_that_has_its_place_now() -> None:
    machine, app = Machine(10), Application(1, [10, 10])
    run(machine, 1, app, 0, value=3)
    app.segment.generations[0] += 1  # freed and allocated again; the server has not been told
    app.content(0)[:] = 4
    run(machine, 1, app, 1)  # spills the old buffer
    assert app.content(0)[0] == 4


def test_a_new_buffer_in_the_slot_of_an_old_one_has_its_own_content() -> None:
    machine, app = Machine(100), Application(1, [10])
    run(machine, 1, app, 0, value=3)
    app.segment.generations[0] += 1
    app.content(0)[:] = 4
    assert run(machine, 1, app, 0) == 4
    assert machine.devices[1].used_nbytes == 10


def test_a_buffer_whose_size_changes_while_it_is_away_is_refused() -> None:
    machine, app = Machine(100), Application(1, [10])
    run(machine, 1, app, 0)
    app.sizes[0] = 9
    with pytest.raises(BufferChangedError, match="must not change"):
        run(machine, 1, app, 0)


def test_the_end_of_a_session_frees_what_it_has_and_ends_its_waiting_tasks() -> None:
    machine, app, other = Machine(10), Application(1, [10]), Application(2, [10])
    lease = machine.residency.acquire(1, [other.want(0)])
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            run(machine, 1, app, 0)
        except Closed as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not machine.residency._waiters:
        pass
    machine.residency.forget_owner(app.owner)
    thread.join(10)
    assert len(failures) == 1
    machine.residency.forget_owner(other.owner)
    machine.residency.release(lease)
    assert machine.devices[1].used_nbytes == 0
    assert not machine.residency._ledger.placements


def test_a_shared_buffer_is_one_buffer_for_both_applications() -> None:
    machine, app, other = Machine(100), Application(1, [10]), Application(2, [10])
    other.segment.bytes = app.segment.bytes  # the same pages
    machine.residency.make_shared(app.home(0), 10)
    assert machine.residency.join(app.home(0), other.home(0))
    run(machine, 1, app, 0, value=5)
    assert other.location(0) == 1
    assert run(machine, 1, other, 0, value=6) == 5
    assert machine.devices[1].used_nbytes == 10
    machine.residency.forget_owner(app.owner)
    assert run(machine, HOST, other, 0) == 6
    machine.residency.forget_owner(other.owner)
    assert not machine.residency._ledger.placements


def test_a_buffer_that_is_gone_cannot_be_joined() -> None:
    machine, app, other = Machine(100), Application(1, [10]), Application(2, [10])
    machine.residency.make_shared(app.home(0), 10)
    machine.residency.forget_owner(app.owner)
    assert not machine.residency.join(app.home(0), other.home(0))


def test_a_queues_footprint_is_what_it_used_last_by_place() -> None:
    machine, app = Machine(100, 100), Application(1, [10, 20, 5])
    machine.residency.release(machine.residency.acquire(1, [app.want(0), app.want(1)], "1.0"))
    machine.residency.release(machine.residency.acquire(2, [app.want(2)], "1.0"))
    machine.residency.release(machine.residency.acquire(2, [app.want(1, WRITE)], "1.1"))
    assert machine.residency.footprints() == {"1.0": {1: 10, 2: 5}, "1.1": {2: 20}}
