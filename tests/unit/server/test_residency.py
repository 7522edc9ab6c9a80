"""Where buffers are: valid copies, spilling, waiting, errors that name sizes and owners."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from polymux.core.errors import Closed
from polymux.server.ledger import HOST_READS
from polymux.server.placement import HOST, READ, WRITE
from polymux.server.placing import BufferChangedError, DoesNotFitError
from polymux.server.transfer import CHUNK_NBYTES, CopyFailedError
from tests.unit.server.fakes import Application, Machine


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


def go_home(machine: Machine, app: Application, slot: int) -> None:
    """Bring a buffer home for a client, which may write it."""
    machine.residency.acquire(HOST, [app.want(slot, READ | WRITE)])


def ways(machine: Machine) -> list[tuple[int, int]]:
    """From where to where copies went."""
    return [(transfer.source, transfer.target) for transfer in machine.transfers]


def test_a_buffer_that_is_written_on_a_device_is_read_at_home_and_elsewhere() -> None:
    machine, app = Machine(100, 100), Application(1, [10])
    app.content(0)[:] = 1
    assert run(machine, 1, app, 0, value=2) == 1
    assert app.location(0) == 1
    assert run(machine, 2, app, 0, value=3) == 2
    assert app.location(0) == 2
    assert run(machine, HOST, app, 0) == 3
    assert app.location(0) == 2  # the client has to ask before it writes: the device's copy is as good
    go_home(machine, app, 0)
    assert app.location(0) == HOST


def test_memory_is_taken_only_when_a_task_needs_it_and_kept_for_the_next_time() -> None:
    machine, app = Machine(100), Application(1, [10])
    assert machine.devices[1].used_nbytes == 0
    run(machine, 1, app, 0)
    go_home(machine, app, 0)
    usage = machine.residency.usage()[1]
    assert (usage.used_nbytes, usage.kept_nbytes, machine.devices[1].used_nbytes) == (0, 10, 10)
    run(machine, 1, app, 0)
    usage = machine.residency.usage()[1]
    assert (usage.used_nbytes, usage.kept_nbytes, machine.devices[1].used_nbytes) == (10, 0, 10)


def test_going_to_and_fro_allocates_once_and_copies_what_is_stale_only() -> None:
    machine, app = Machine(100, 100), Application(1, [10])
    for turn in range(10):
        assert run(machine, 1, app, 0, value=2 * turn + 1) == 2 * turn
        assert run(machine, 2, app, 0, value=2 * turn + 2) == 2 * turn + 1
    assert [device.allocations for device in machine.devices.values()] == [1, 1]
    assert machine.residency.usage()[1].kept_nbytes == 10


def test_going_home_unmodified_costs_no_copy() -> None:
    machine, app = Machine(100), Application(1, [10])
    run(machine, 1, app, 0)
    go_home(machine, app, 0)
    assert ways(machine) == [(HOST, 1)]


def test_what_is_read_at_several_places_is_copied_once_to_each() -> None:
    machine, app = Machine(100, 100), Application(1, [10])
    app.content(0)[:] = 4
    for _ in range(5):
        for location in (1, 2, HOST):
            assert run(machine, location, app, 0) == 4
    assert sorted(ways(machine)) == [(HOST, 1), (HOST, 2)]
    assert [machine.residency.usage()[at].used_nbytes for at in (1, 2)] == [10, 10]


def test_a_write_makes_all_other_copies_stale() -> None:
    machine, app = Machine(100, 100), Application(1, [10])
    for location in (1, 2, HOST):
        run(machine, location, app, 0)
    run(machine, 2, app, 0, value=5)
    assert [machine.residency.usage()[at].used_nbytes for at in (1, 2)] == [0, 10]
    assert run(machine, 1, app, 0) == 5
    assert run(machine, HOST, app, 0) == 5


def test_a_buffer_that_only_the_host_reads_any_more_is_the_hosts_alone() -> None:
    machine, app = Machine(100), Application(1, [10])
    run(machine, 1, app, 0, value=3)
    for _ in range(HOST_READS):
        assert app.location(0) == 1
        assert run(machine, HOST, app, 0) == 3
    assert app.location(0) == HOST
    assert len(machine.transfers) == 2


def test_two_tasks_read_a_buffer_on_two_devices_at_the_same_time() -> None:
    machine, app = Machine(100, 100), Application(1, [10])
    first = machine.residency.acquire(1, [app.want(0)])
    second = machine.residency.acquire(2, [app.want(0)])
    machine.residency.release(first)
    machine.residency.release(second)


def test_memory_of_a_reader_is_not_written_before_it_has_ended() -> None:
    machine, app = Machine(100, 100), Application(1, [10])
    reading = machine.residency.acquire(1, [app.want(0)])
    run(machine, 2, app, 0, value=6)  # the copy at 1 is stale, and still being read
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(run(machine, 1, app, 0)))
    thread.start()
    while not machine.residency._waiters:
        pass
    assert reading.memory(0)[0] == 0
    machine.residency.release(reading)
    thread.join(10)
    assert seen == [6]


def test_devices_copy_from_each_other_where_one_can_be_addressed_or_both_are_peers() -> None:
    for addressable, peers in ((1, False), (2, False), (0, True)):
        machine, app = Machine(100, 100), Application(1, [10])
        if addressable:
            machine.devices[addressable].addressable = True
        if peers:
            machine.devices[2].peers = [machine.devices[1]]
        run(machine, 2, app, 0)  # what can be addressed is known from the first allocation on
        run(machine, 1, app, 0, value=8)
        assert run(machine, 2, app, 0, value=9) == 8
        assert ways(machine)[-1] == (1, 2)
        assert app.content(0)[0] == 0  # the host's bytes were not needed
        assert run(machine, HOST, app, 0) == 9


def test_other_devices_copy_through_the_host_which_has_the_content_then() -> None:
    sizes = [3 * CHUNK_NBYTES + 17]
    machine, app = Machine(2 * sizes[0], 2 * sizes[0]), Application(1, sizes)
    lease = machine.residency.acquire(1, [app.want(0, WRITE)])
    content = np.random.default_rng(1).integers(0, 256, sizes[0], dtype=np.uint8)
    lease.memory(0)[:] = content
    machine.residency.release(lease)
    lease = machine.residency.acquire(2, [app.want(0)])
    assert np.array_equal(lease.memory(0), content)
    machine.residency.release(lease)
    assert sorted(ways(machine)) == [(HOST, 2), (1, HOST)]
    machine.residency.acquire(HOST, [app.want(0)])
    assert np.array_equal(app.content(0), content)
    assert len(machine.transfers) == 2


@pytest.mark.parametrize("failing", [1, 2])
def test_a_copy_through_the_host_that_fails_on_either_side_leaves_the_content_where_it_was(
    failing: int,
) -> None:
    sizes = [3 * CHUNK_NBYTES]
    machine, app = Machine(sizes[0], sizes[0]), Application(1, sizes)
    run(machine, 1, app, 0, value=7)
    machine.devices[failing].failures = 1
    with pytest.raises(CopyFailedError, match="the driver fails"):
        run(machine, 2, app, 0)
    assert machine.devices[2].used_nbytes == 0
    assert run(machine, 2, app, 0) == 7


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
    with pytest.raises(CopyFailedError, match="the driver fails"):
        run(machine, 2, app, 0)
    assert app.location(0) == 1
    assert run(machine, 2, app, 0) == 8
    machine.devices[1].failures = 1
    with pytest.raises(CopyFailedError, match="the driver fails"):
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
    assert machine.devices[1].used_nbytes == machine.residency.usage()[1].by_session[1] == 10
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
