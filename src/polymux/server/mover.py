"""Copies what a queue needs to the device that it will move to, while it still runs on the old one.

Notes
-----
Only what pending tasks need is copied, and of that only what no task writes that will run meanwhile: that would have
to be copied again. The rest gets memory, so that after the switch it costs a copy and nothing else. One thread does it
for one queue after the other; it waits for no task of another application.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from polymux.core.errors import Closed, PolymuxError
from polymux.core.ids import DeviceId
from polymux.segment import SegmentError
from polymux.server.accelerator import Accelerator
from polymux.server.measurement import Measurements
from polymux.server.placement import HOST, READ, WRITE, Key, Want
from polymux.server.placing import DoesNotFitError
from polymux.server.residency import Residency
from polymux.server.session import TaskQueue

LOOK_AHEAD = 256
"""Pending tasks whose data are prepared."""
TASKS_LOOKED_AT = 32
"""Of them, those that are checked one by one when the device has no room for the data of all."""
MARGIN = 8
"""Tasks that may run besides those that are expected to, while data are copied."""
BOUNDARY_TIMEOUT_S = 0.5
"""How long a task on the host is waited for whose data could be copied ahead once it has ended."""

Done = Callable[[str | None], None]


@dataclass(frozen=True, slots=True)
class _Job:
    queue: TaskQueue
    location: int
    done: Done


class Mover:
    """Prepares moves.

    Parameters
    ----------
    residency : Residency
    measurements : Measurements
    locations : mapping of DeviceId to int
        The memory of each device; `HOST` for those that work on the host's.
    find : callable
        Tells which accelerator has a queue now; None: none has.
    """

    def __init__(
        self,
        residency: Residency,
        measurements: Measurements,
        locations: Mapping[DeviceId, int],
        find: Callable[[TaskQueue], Accelerator | None],
    ) -> None:
        self._residency = residency
        self._measurements = measurements
        self._locations = locations
        self._find = find
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="polymux-mover", daemon=True)

    # ---- from any thread ----

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self, timeout_s: float) -> bool:
        """End the thread after what it was asked to do; False when a copy takes longer than that."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def prepare(self, queue: TaskQueue, device: DeviceId, done: Done) -> None:
        """Copy what a queue's pending tasks need, and keep memory for all of it.

        Parameters
        ----------
        queue : TaskQueue
        device : DeviceId
            Where it will run.
        done : callable
            Called from the mover's thread with None, or with the reason why its tasks cannot run there.
        """
        self._jobs.put(_Job(queue, self._locations[device], done))

    # ---- in the thread ----

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Do the next job; False at the end. Nothing of it is kept, since it keeps a session alive."""
        job = self._jobs.get()
        if job is None:
            return False
        problem: str | None
        try:
            problem = self._prepare(job.queue, job.location)
        except (Closed, SegmentError):
            problem = "its application has ended, or the queue is closed"
        except PolymuxError as error:
            problem = str(error)
        except Exception as error:  # a driver's: the queue stays where it works
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            self._residency.release_held(job.queue.id)
        job.done(problem)
        return True

    def _prepare(self, queue: TaskQueue, location: int) -> str | None:
        self._residency.release_held(queue.id)
        wants = pending_wants(queue, LOOK_AHEAD)
        if not wants:
            return None
        if location != HOST:
            problem = self._find_misfit(queue, location, wants) or self._reserve(queue, location, wants)
            if problem is not None:
                return problem
        self._copy(queue, location, self._steady(queue, location, wants))
        return None

    def _find_misfit(self, queue: TaskQueue, location: int, wants: Sequence[Want]) -> str | None:
        """Find a task that needs more than the device has."""
        if self._residency.excess(location, wants) is None:
            return None
        known: list[tuple[int, int, int]] = []
        for count in range(1, TASKS_LOOKED_AT + 1):
            refs = queue.session.segment.pending_refs(queue.index, count)
            own = refs[len(known) :]
            if not own:
                break
            problem = self._residency.excess(location, _wants(queue, own))
            if problem is not None:
                return problem
            known = refs
        return None

    def _reserve(self, queue: TaskQueue, location: int, wants: Sequence[Want]) -> str | None:
        """Take memory for as much as there is room for; the next task has to be among it."""
        if self._take_memory(queue, location, wants) is None:
            return None
        for _ in range(TASKS_LOOKED_AT):
            head = pending_wants(queue, 1)
            problem = self._take_memory(queue, location, head)
            if problem is None:
                return None
            if head == pending_wants(queue, 1):
                return f"there is no room for the data of its next task: {problem}"
        return None  # tasks end faster than one can be looked at: those to come wait for memory there, as any task

    def _take_memory(self, queue: TaskQueue, location: int, wants: Sequence[Want]) -> str | None:
        """Have memory for buffers in their order; the reason for the first that has none."""
        for want in wants:
            problem = "running tasks hold its memory"
            try:
                self._residency.bring_ahead(location, Want(want.home, want.nbytes, 0), queue.id)
            except DoesNotFitError as error:
                problem = str(error)
            if not self._residency.has_memory(location, want):
                return problem
        return None

    def _steady(self, queue: TaskQueue, location: int, wants: Sequence[Want]) -> list[Want]:
        """Choose what is worth to be copied now: what no task will write before the copies are made."""
        refs = queue.session.segment.pending_refs(queue.index, self._tasks_meanwhile(queue, location, wants))
        written = {Key(queue.session.id, slot) for slot, _, access in refs if access & WRITE}
        return [want for want in wants if want.access & READ and want.home.key not in written]

    def _tasks_meanwhile(self, queue: TaskQueue, location: int, wants: Sequence[Want]) -> int:
        """Estimate how many tasks run while everything is copied; all that are looked at, when nobody knows."""
        accelerator = self._find(queue)
        if accelerator is None:
            return LOOK_AHEAD
        stats = accelerator.worker.stats()["queues"].get(queue.id, {"tasks": 0, "busy_ns": 0})
        source = self._locations[accelerator.device.id]
        copy_ns = self._measurements.transfer_ns({source: sum(want.nbytes for want in wants)}, location)
        if copy_ns is None or not stats["tasks"] or not stats["busy_ns"]:
            return LOOK_AHEAD
        return min(LOOK_AHEAD, MARGIN + copy_ns * int(stats["tasks"]) // int(stats["busy_ns"]))

    def _copy(self, queue: TaskQueue, location: int, wants: Sequence[Want]) -> None:
        at_home = [want for want in wants if location != HOST and self._residency.is_at_home(want.home)]
        keys = {want.home.key for want in at_home}
        try:
            self._residency.lend(at_home, location)
            self._bring([want for want in wants if want.home.key not in keys], location, queue.id)
            if at_home and self._reach_boundary(queue):
                # what a pending task needs its client does not write, and asks for before it will
                needed = {want.home for want in pending_wants(queue, LOOK_AHEAD)}
                self._bring([want for want in at_home if want.home in needed], location, queue.id)
        finally:
            self._residency.lend(at_home, HOST)

    def _bring(self, wants: Sequence[Want], location: int, queue: str) -> None:
        for want in wants:
            self._residency.bring_ahead(location, Want(want.home, want.nbytes, READ), queue)

    def _reach_boundary(self, queue: TaskQueue) -> bool:
        """Wait until the task on the host has ended that began before it was told to ask; False: it takes long."""
        accelerator = self._find(queue)
        if accelerator is None or self._locations[accelerator.device.id] != HOST:
            return True
        reached = threading.Event()
        accelerator.at_boundary(reached.set)
        return reached.wait(BOUNDARY_TIMEOUT_S)


def pending_wants(queue: TaskQueue, limit: int) -> list[Want]:
    """Return what the first pending tasks of a queue need, each buffer once, in the order of its first use.

    Raises
    ------
    SegmentError
        When the queue is closed.
    """
    return _wants(queue, queue.session.segment.pending_refs(queue.index, limit))


def _wants(queue: TaskQueue, refs: Sequence[tuple[int, int, int]]) -> list[Want]:
    session = queue.session
    found: dict[tuple[int, int], Want] = {}
    for slot, generation, access in refs:
        want = found.get((slot, generation))
        if want is not None:
            want.access |= access
            continue
        try:
            offset, nbytes, _, _ = session.segment.buffer(slot, generation)
        except SegmentError:  # freed meanwhile: its task will fail
            continue
        found[slot, generation] = Want(session.home(slot, generation, offset), nbytes, access)
    return list(found.values())
