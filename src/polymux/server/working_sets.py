"""Buffers that stay on a device from one native task of a queue to the next, so that those run without Python.

A device whose memory the processor reaches (cores with memory of their own) can run a native kernel as soon as it is
known where its buffers lie and that they stay there. For a queue whose native tasks follow each other without a pause
the accelerator thread keeps the buffers of the last tasks together in one lease, and grants them to its worker for as
many tasks as take about `BUDGET_NS`. The lease ends when those are used up, when there is nothing to do, and when the
thread would have to wait for anything.

Notes
-----
One `WorkingSets` belongs to one accelerator thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from polymux.segment import Worker
from polymux.server.arguments import Ref
from polymux.server.placement import Lease, Want
from polymux.server.residency import Residency
from polymux.server.session import TaskQueue

BUDGET_NS = 4_000_000
"""How long buffers are granted: whoever else wants them waits that much longer."""
MOST_USES = 512
STREAK = 3
"""Native tasks of a queue, since it was last idle, before their buffers are kept."""
MOST_BUFFERS = 16
"""Of one working set; a queue that uses more starts a new one."""


@dataclass(slots=True, eq=False)
class WorkingSet:
    """The buffers of one queue's last native tasks, by slot, with all that was done to them."""

    refs: dict[int, Ref] = field(default_factory=dict)
    streak: int = 0
    lease: Lease | None = None


class WorkingSets:
    """The working sets of the queues that are bound to one stream.

    Parameters
    ----------
    worker : Worker
        The thread's own.
    residency : Residency
    location : int
        Of the device's memory.
    """

    def __init__(self, worker: Worker, residency: Residency, location: int) -> None:
        self._worker = worker
        self._residency = residency
        self._location = location
        self._sets: dict[str, WorkingSet] = {}
        self._leased: dict[str, WorkingSet] = {}

    def __bool__(self) -> bool:
        """Whether buffers are kept for any queue."""
        return bool(self._leased)

    def begin(self, queue: TaskQueue, refs: list[Ref]) -> tuple[WorkingSet, list[Want]]:
        """Take note of a native task that is about to run, and end what was kept for its queue.

        Returns
        -------
        WorkingSet
            Of the queue.
        list of Want
            The buffers of its set, to be held beside those of the task; empty as long as nothing is to be kept.
        """
        kept = self._sets.get(queue.id)
        if kept is None:
            kept = self._sets[queue.id] = WorkingSet()
        if kept.lease is not None:
            self._end(queue.id, kept)
        home = queue.session.home
        kept.streak += 1
        if kept.streak == 1 or len(kept.refs) + len(refs) > MOST_BUFFERS:
            kept.refs.clear()
        for ref in refs:
            before = kept.refs.get(ref[0])
            access = ref[2] | (before[2] if before is not None and before[1] == ref[1] else 0)
            kept.refs[ref[0]] = (*ref[:2], access, *ref[3:])
        if kept.streak < STREAK:
            return kept, []
        return kept, [Want(home(ref[0], ref[1], ref[5]), ref[6], ref[2]) for ref in kept.refs.values()]

    def start_anew(self, kept: WorkingSet) -> None:
        """Keep nothing for now: the set cannot be here together."""
        kept.streak = 0
        kept.refs.clear()

    def keep(self, queue: TaskQueue, kept: WorkingSet, lease: Lease, start_ns: int, end_ns: int) -> None:
        """Keep the lease under which a task has run, if further ones are likely to follow; else it ends here."""
        uses = min(MOST_USES, BUDGET_NS // max(1, end_ns - start_ns))
        if kept.streak < STREAK or uses < 2:
            self._residency.release(lease)
            return
        kept.lease = lease
        self._leased[queue.id] = kept
        buffers = [(want.home.slot, want.home.generation, want.access, want.nbytes) for want in lease.wants]
        memories = [lease.memory(want.home.slot) for want in lease.wants]
        self._worker.grant(queue.id, buffers, memories, uses)

    def end_all(self) -> bool:
        """End what is kept for any queue; False when that is nothing."""
        if not self._leased:
            return False
        for queue, kept in list(self._leased.items()):
            kept.streak = 0
            self._end(queue, kept)
        return True

    def forget(self, queue: str) -> None:
        """Forget a queue that is let go of."""
        kept = self._sets.pop(queue, None)
        if kept is not None and kept.lease is not None:
            self._end(queue, kept)

    def _end(self, queue: str, kept: WorkingSet) -> None:
        self._worker.recall(queue)
        lease, kept.lease = kept.lease, None
        del self._leased[queue]
        if lease is not None:
            self._residency.release(lease)
