"""What is copied before a queue moves, what is only given memory, and what happens when there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polymux.core.ids import DeviceId
from polymux.server.measurement import Measurements
from polymux.server.mover import Mover
from polymux.server.placement import HOST, READ, WRITE, Lease
from tests.unit.server.fakes import Application, Machine

HOSTED, FIRST, SECOND = DeviceId("cpu:0"), DeviceId("fake:0"), DeviceId("fake:1")
LOCATIONS = {HOSTED: HOST, FIRST: 1, SECOND: 2}


class Rig:
    """One application with a queue, running on some device, and a mover that works when it is told to."""

    def __init__(self, sizes: list[int], *capacities: int, runs_on: DeviceId = FIRST) -> None:
        self.machine = Machine(*capacities)
        self.app = Application(1, sizes)
        session = SimpleNamespace(
            id=1, owner=self.app.owner, segment=self.app.segment, home=lambda slot, *_: self.app.home(slot)
        )
        self.queue: Any = SimpleNamespace(id="1.0", session=session, index=0)
        self.boundaries: list[Any] = []
        self.stats = {"tasks": 0, "busy_ns": 0}
        self.accelerator: Any = SimpleNamespace(
            device=SimpleNamespace(id=runs_on),
            worker=SimpleNamespace(stats=lambda: {"queues": {"1.0": self.stats}}),
            at_boundary=self.at_boundary,
        )
        self.mover = Mover(self.machine.residency, Measurements(), LOCATIONS, lambda queue: self.accelerator)
        self.answers: list[str | None] = []

    def at_boundary(self, reached: Any) -> None:
        for step in self.boundaries:
            step()
        reached()

    def pending(self, *tasks: dict[int, int]) -> None:
        """Let tasks be pending: each the buffers that it uses, with the access."""
        self.app.segment.tasks = [[(slot, 0, access) for slot, access in task.items()] for task in tasks]

    def prepare(self, device: DeviceId) -> str | None:
        self.mover.prepare(self.queue, device, self.answers.append)
        assert self.mover._turn()
        return self.answers.pop()

    def run(self, location: int, slot: int, access: int, value: int = 0) -> Lease:
        lease = self.machine.residency.acquire(location, [self.app.want(slot, access)], "1.0")
        if access & WRITE:
            (self.app.content(slot) if location == HOST else lease.memory(slot))[:] = value
        self.machine.residency.release(lease)
        return lease

    def copies(self) -> list[tuple[int, int, int]]:
        found = [(item.source, item.target, item.nbytes) for item in self.machine.transfers]
        self.machine.transfers.clear()
        return found


def test_nothing_is_moved_for_a_queue_without_pending_tasks() -> None:
    rig = Rig([10], 100, 100)
    rig.run(1, 0, READ | WRITE)
    rig.copies()
    assert rig.prepare(SECOND) is None
    assert rig.copies() == []
    assert rig.machine.devices[2].used_nbytes == 0


def test_what_pending_tasks_only_read_is_copied_and_what_they_write_gets_memory() -> None:
    rig = Rig([10, 20, 40], 100, 100)
    rig.machine.devices[1].addressable = True
    for slot in range(3):
        rig.run(1, slot, READ | WRITE, value=slot + 1)
    rig.copies()
    rig.pending({0: READ, 1: READ | WRITE}, {0: READ, 1: READ | WRITE})
    assert rig.prepare(SECOND) is None
    assert rig.copies() == [(1, 2, 10)]
    assert rig.machine.devices[2].used_nbytes == 30  # nothing for buffer 2, which no pending task needs
    rig.run(1, 1, READ | WRITE, value=9)  # the queue runs on meanwhile
    assert rig.copies() == []
    assert rig.run(2, 0, READ).memory(0)[0] == 1
    assert rig.run(2, 1, READ | WRITE, value=5).moved_nbytes == 20
    assert rig.copies() == [(1, 2, 20)]
    assert rig.machine.devices[2].allocations == 2


def test_what_is_written_after_it_was_copied_is_copied_again_and_nothing_else() -> None:
    rig = Rig([10, 20], 100, 100)
    rig.machine.devices[1].addressable = True
    for slot in range(2):
        rig.run(1, slot, READ | WRITE, value=slot + 1)
    rig.pending({0: READ, 1: READ})
    assert rig.prepare(SECOND) is None
    rig.run(1, 1, READ | WRITE, value=7)
    rig.copies()
    rig.run(2, 0, READ)
    assert rig.run(2, 1, READ).memory(1)[0] == 7
    assert rig.copies() == [(1, 2, 20)]


def test_a_buffer_that_is_written_while_it_is_copied_ahead_is_stale_there() -> None:
    rig = Rig([10], 100, 100)
    rig.run(1, 0, READ | WRITE, value=1)
    rig.pending({0: READ})
    copy_out = rig.machine.devices[1].copy_out

    def written_meanwhile(*arguments: Any) -> None:
        copy_out(*arguments)
        rig.machine.devices[1].copy_out = copy_out
        rig.run(1, 0, READ | WRITE, value=2)  # does not wait for the mover

    rig.machine.devices[1].copy_out = written_meanwhile
    assert rig.prepare(SECOND) is None
    assert rig.machine.residency.usage()[2].used_nbytes == 0
    assert rig.run(2, 0, READ).memory(0)[0] == 2
    rig.run(HOST, 0, READ)
    assert rig.app.content(0)[0] == 2


def test_a_buffer_that_is_written_only_after_the_copy_will_be_made_is_copied() -> None:
    rig = Rig([1000], 2000, 2000)
    for _ in range(3):
        rig.run(1, 0, READ | WRITE)
        rig.run(2, 0, READ | WRITE)
    rig.run(1, 0, READ | WRITE)
    rig.mover._measurements.transfer_ns = lambda *_: 10_000  # type: ignore[method-assign]
    rig.stats.update(tasks=10, busy_ns=10 * 1_000)  # ten tasks while it is copied, and eight to be sure
    rig.copies()
    for readers, copied in ((17, False), (18, True)):
        rig.pending(*[{0: READ}] * readers, {0: READ | WRITE})
        assert rig.prepare(SECOND) is None
        assert (rig.copies() != []) == copied


def test_tasks_on_the_host_ask_from_the_moment_on_when_their_data_are_copied_ahead() -> None:
    rig = Rig([10, 20], 100, 100, runs_on=HOSTED)
    rig.app.content(0)[:] = 1
    seen: list[int] = []

    def boundary() -> None:
        seen.append(rig.app.location(0))
        rig.app.content(0)[:] = 2  # the end of a task that began before

    rig.boundaries.append(boundary)
    rig.pending({0: READ, 1: READ | WRITE})
    assert rig.prepare(SECOND) is None
    assert seen == [2]
    assert rig.app.location(0) == 2
    assert rig.app.location(1) == HOST  # written by tasks on the host, which need not ask
    assert rig.run(2, 0, READ).memory(0)[0] == 2


def test_data_at_home_are_left_alone_when_no_pending_task_needs_them_any_more() -> None:
    """Its client may write them then without asking, if it has looked before it was told to."""
    rig = Rig([10], 100, 100, runs_on=HOSTED)
    rig.pending({0: READ})
    rig.boundaries.append(rig.pending)
    assert rig.prepare(SECOND) is None
    assert rig.copies() == []
    assert rig.app.location(0) == HOST


def test_data_at_home_are_left_alone_when_a_task_on_the_host_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polymux.server.mover.BOUNDARY_TIMEOUT_S", 0.0)
    rig = Rig([10], 100, 100, runs_on=HOSTED)
    rig.accelerator.at_boundary = lambda reached: None
    rig.pending({0: READ})
    assert rig.prepare(SECOND) is None
    assert rig.copies() == []
    assert rig.app.location(0) == HOST


def test_a_move_to_the_hosts_memory_copies_there_and_stays_valid_on_the_device() -> None:
    rig = Rig([10], 100)
    rig.run(1, 0, READ | WRITE, value=3)
    rig.copies()
    rig.pending({0: READ})
    assert rig.prepare(HOSTED) is None
    assert rig.copies() == [(1, HOST, 10)]
    rig.run(1, 0, READ)
    rig.run(HOST, 0, READ)
    assert rig.copies() == []


def test_memory_that_is_held_goes_to_others_only_when_they_would_have_to_wait() -> None:
    rig = Rig([10, 10, 10], 100, 20)
    rig.run(2, 2, READ)
    rig.run(1, 0, READ | WRITE, value=1)
    rig.pending({0: READ | WRITE})
    assert rig.prepare(SECOND) is None
    other = Application(2, [10, 20])
    residency = rig.machine.residency
    residency.release(residency.acquire(2, [other.want(0)], "2.0"))  # takes what is not held
    assert residency.has_memory(2, rig.app.want(0))
    assert not residency.has_memory(2, rig.app.want(2))
    residency.release(residency.acquire(2, [other.want(1)], "2.0"))
    assert not residency.has_memory(2, rig.app.want(0))
    assert rig.run(2, 0, READ).memory(0)[0] == 1


def test_a_task_that_the_device_can_never_hold_is_a_problem_and_nothing_is_kept() -> None:
    rig = Rig([10, 10, 15], 100, 30)
    rig.pending({0: READ}, {1: READ, 2: READ}, {0: READ, 1: READ, 2: READ})
    problem = rig.prepare(SECOND)
    assert problem is not None
    for text in ("35 B", "30 B", "15 B", "'app1'", "fake:1"):
        assert text in problem
    assert rig.machine.devices[2].used_nbytes == 0


def test_data_of_many_tasks_are_prepared_as_far_as_there_is_room() -> None:
    rig = Rig([10, 10, 15], 100, 30)
    rig.pending({0: READ}, {1: READ}, {2: READ})
    assert rig.prepare(SECOND) is None
    assert rig.machine.devices[2].used_nbytes == 20
    assert rig.run(2, 2, READ).moved_nbytes == 15


def test_memory_that_running_tasks_hold_is_a_problem_and_nobody_waits() -> None:
    rig = Rig([10], 100, 20)
    other = Application(2, [15])
    lease = rig.machine.residency.acquire(2, [other.want(0)])
    rig.pending({0: READ | WRITE})
    problem = rig.prepare(SECOND)
    assert problem is not None
    assert "running tasks hold its memory" in problem
    rig.machine.residency.release(lease)
    assert rig.prepare(SECOND) is None


@pytest.mark.parametrize("room", [100, 25])
def test_tasks_that_pass_while_memory_is_taken_are_no_problem(room: int) -> None:
    rig = Rig([10, 20, 5], 100, room)
    for slot in range(3):
        rig.run(1, slot, READ | WRITE)
    rig.pending({0: WRITE}, {1: WRITE})
    allocate = rig.machine.devices[2].allocate

    def passed_meanwhile(nbytes: int) -> Any:
        rig.pending({2: WRITE})  # the tasks that were looked at have ended, another one is next
        return allocate(nbytes)

    rig.machine.devices[2].allocate = passed_meanwhile
    assert rig.prepare(SECOND) is None


def test_a_driver_that_has_no_memory_is_a_problem_and_nothing_is_kept() -> None:
    rig = Rig([10, 10], 100, 100)
    rig.run(1, 0, READ | WRITE, value=6)
    rig.pending({1: READ, 0: READ})
    allocate = rig.machine.devices[2].allocate
    made: list[Any] = []

    def refuse_the_second(nbytes: int) -> Any:
        if made:
            raise MemoryError("the driver refuses")
        made.append(allocate(nbytes))
        return made[0]

    rig.machine.devices[2].allocate = refuse_the_second
    problem = rig.prepare(SECOND)
    assert problem is not None
    assert "the driver refuses" in problem
    assert rig.machine.devices[2].used_nbytes == 0
    assert rig.run(1, 0, READ).memory(0)[0] == 6


@pytest.mark.parametrize("failing", [1, 2])
def test_a_copy_that_fails_is_a_problem_and_the_data_stay_where_they_are(failing: int) -> None:
    rig = Rig([10], 100, 100)
    rig.run(1, 0, READ | WRITE, value=6)
    rig.pending({0: READ})
    rig.machine.devices[failing].failures = 1
    problem = rig.prepare(SECOND)
    assert problem is not None
    assert "the driver fails" in problem
    assert rig.machine.devices[2].used_nbytes == 0
    assert rig.run(1, 0, READ).memory(0)[0] == 6


def test_an_application_that_ends_meanwhile_is_a_problem_and_leaves_nothing() -> None:
    rig = Rig([10, 10], 100, 100)
    for slot in range(2):
        rig.run(1, slot, READ | WRITE)
    rig.pending({0: READ, 1: READ})
    copy_out = rig.machine.devices[1].copy_out

    def ends_meanwhile(*arguments: Any) -> None:
        rig.machine.residency.forget_owner(rig.app.owner)
        copy_out(*arguments)

    rig.machine.devices[1].copy_out = ends_meanwhile
    problem = rig.prepare(SECOND)
    assert problem is not None
    assert "ended" in problem
    assert [device.used_nbytes for device in rig.machine.devices.values()] == [0, 0]
    assert not rig.machine.residency._ledger.placements


def test_a_buffer_that_is_freed_meanwhile_is_left_out() -> None:
    rig = Rig([10, 10], 100, 100)
    rig.pending({0: READ, 1: READ})
    rig.app.segment.generations[0] = 1
    rig.accelerator = None
    assert rig.prepare(SECOND) is None
    assert rig.machine.devices[2].used_nbytes == 10


def test_a_new_preparation_takes_the_place_of_an_earlier_one() -> None:
    rig = Rig([10, 10], 100, 10)
    rig.run(1, 0, READ | WRITE)
    rig.pending({0: READ | WRITE})
    assert rig.prepare(SECOND) is None
    rig.pending({1: READ | WRITE})
    assert rig.prepare(SECOND) is None
    assert rig.machine.residency.has_memory(2, rig.app.want(1))
    assert not rig.machine.residency.has_memory(2, rig.app.want(0))
