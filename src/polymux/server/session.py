"""One client: its memory, queues, kernels, grants and worker processes."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic_ns
from typing import TYPE_CHECKING

from polymux.core.errors import InvalidRequest
from polymux.core.event import NORMAL_WEIGHT
from polymux.core.ids import DeviceId, QueueId, SessionId, StreamId, queue_id
from polymux.core.status import TaskStatus
from polymux.segment import Segment, SegmentError
from polymux.server.connection import Peer
from polymux.server.kernels import SessionKernels
from polymux.server.placement import Home, Owner

if TYPE_CHECKING:
    from polymux.server.jobs.lease import Lease
    from polymux.server.started import BoundQueue
    from polymux.server.worker_process import WorkerProcess


MAX_SHARED = 1024
"""Exported and imported buffers of one session: each takes descriptors of the server."""


@dataclass(slots=True, eq=False)
class TaskQueue:
    """One open queue as the server's threads see it.

    Notes
    -----
    `home`, `weight` and `failure` are set by the scheduler thread before it binds the queue; `asked_kernel`,
    `asked_home`, `asked_wish` and the counts belong to the accelerator thread that has the queue.
    """

    id: QueueId
    session: Session
    index: int
    name: str
    priority: int
    pinned: DeviceId | None
    opened_ns: int
    memory_nbytes: int = 0
    """How much data its tasks use, as the client expects; 0: not said."""
    pinned_stream: StreamId | None = None
    """The only stream of `pinned` that may run it."""
    weight: int = NORMAL_WEIGHT
    """What it has on the stream to which it is bound."""
    home: DeviceId | None = None
    """The device where it belongs while it is away because of a missing kernel."""
    asked_kernel: int = 0
    """Number of the last task whose kernel was missing on its device; tasks are numbered from 1."""
    asked_home: int = 0
    """Number of the last task that could have run at home, so that it is asked about once."""
    asked_wish: int = 0
    """Number of the last task that wished for another device, so that it is asked about once."""
    failure: tuple[TaskStatus, str] | None = None
    """How task `asked_kernel` is to end, since no device may run it."""
    closed: list[Callable[[], None]] = field(default_factory=list)
    """What to call when no thread has it any more; filled when it is being closed."""
    closing: bool = False
    tasks: int = 0
    """Tasks completed on streams that it has left."""
    busy_ns: int = 0
    waiting_ns: int = 0
    """From submit to start, summed over those tasks."""
    failed: int = 0
    """Those of the tasks that ended with an error."""
    left_ns: int = 0
    """When the last stream let go of it, CLOCK_MONOTONIC."""
    migrations: int = 0
    failed_task: tuple[int, int] = (0, 0)
    """Number of the last task that failed with its device, and how often it has."""
    kept: dict[StreamId, BoundQueue] = field(default_factory=dict)
    """What each stream that had it found out about its kernels and buffers, for when it comes back."""

    def pending(self) -> int:
        """Count its tasks that have been submitted and have not ended; 0 when it is closed."""
        try:
            return self.session.segment.pending(self.index)
        except SegmentError:
            return 0

    def count(self, tasks: int, busy_ns: int, waiting_ns: int, failed: int) -> None:
        """Add what a stream did for it that lets go of it now."""
        self.left_ns = monotonic_ns()
        self.tasks += tasks
        self.busy_ns += busy_ns
        self.waiting_ns += waiting_ns
        self.failed += failed


@dataclass(frozen=True, slots=True)
class Foreign:
    """Pages of a grant under a range of a session's segment."""

    slot: int
    generation: int
    offset: int
    nbytes: int
    fd: int = field(compare=False)


class Session:
    """A client from its greeting to the end of its connection.

    Parameters
    ----------
    id : SessionId
    name : str
        The application's, as it says.
    peer : Peer
    segment : Segment
        Made for it.
    kernels : SessionKernels
    worker_nbytes : int
        Memory that each of its worker processes may take.
    weight : int
        Its claim on device time relative to other sessions, 1 to 10,000; 100 is normal.
    """

    def __init__(
        self,
        id: SessionId,
        name: str,
        peer: Peer,
        segment: Segment,
        kernels: SessionKernels,
        worker_nbytes: int,
        weight: int = NORMAL_WEIGHT,
    ) -> None:
        self.id = id
        self.name = name
        self.peer = peer
        self.segment = segment
        self.kernels = kernels
        self.worker_nbytes = worker_nbytes
        self.weight = weight
        self.owner = Owner(id, f"{name!r} (session {id})")
        self.queues: dict[int, TaskQueue] = {}
        self.tokens: dict[tuple[int, int], str] = {}
        self.foreign: dict[int, Foreign] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self.leases: dict[int, Lease] = {}
        self.claimed: frozenset[DeviceId] = frozenset()  # where it schedules requests, and nobody else does
        self._foreign_lock = threading.Lock()
        self._readers: set[subprocess.Popen[str]] = set()
        self._readers_lock = threading.Lock()

    @property
    def ended(self) -> bool:
        """Whether the client is gone."""
        return self.owner.ended

    def queue_id(self, index: int) -> QueueId:
        """Name one of its queues."""
        return queue_id(self.id, index)

    def home(self, slot: int, generation: int, offset: int) -> Home:
        """Describe where one of its buffers is at home."""
        return Home(self.owner, self.segment, slot, generation, offset)

    def check_shareable(self, slot: int, offset: int, nbytes: int) -> None:
        """Refuse to put a grant's pages where others are, so that what is shared never exceeds the segment.

        Raises
        ------
        InvalidRequest
            Also when the session shares too many buffers.
        """
        with self._foreign_lock:
            if len(self.foreign) >= MAX_SHARED:
                raise InvalidRequest(f"this session shares {MAX_SHARED} buffers; free some of them first")
            for other in self.foreign.values():
                apart = offset + nbytes <= other.offset or other.offset + other.nbytes <= offset
                if other.slot == slot or not apart:
                    raise InvalidRequest(
                        f"bytes {offset} + {nbytes} of buffer {slot} are those of buffer {other.slot}, which is"
                        " shared already; free that one first"
                    )

    def add_foreign(self, slot: int, generation: int, offset: int, nbytes: int, fd: int) -> None:
        """Remember that a grant's pages lie under a range; keeps a descriptor of its own."""
        with self._foreign_lock:
            self.foreign[slot] = Foreign(slot, generation, offset, nbytes, os.dup(fd))

    def remove_foreign(self, slot: int) -> None:
        """Forget the pages under a slot's buffer."""
        with self._foreign_lock:
            foreign = self.foreign.pop(slot, None)
            if foreign is not None:
                os.close(foreign.fd)

    def foreign_since(self, known: Mapping[int, Foreign]) -> tuple[list[Foreign], list[Foreign]]:
        """Compare with what was known before.

        Returns
        -------
        gone, new : list of Foreign
            The new ones with descriptors of their own, which the caller closes.
        """
        with self._foreign_lock:
            gone = [foreign for slot, foreign in known.items() if self.foreign.get(slot) != foreign]
            new = [foreign for slot, foreign in self.foreign.items() if known.get(slot) != foreign]
            return gone, [replace(foreign, fd=os.dup(foreign.fd)) for foreign in new]

    def add_reader(self, process: subprocess.Popen[str]) -> None:
        """Have a process that reads a file of the client killed when the client goes."""
        with self._readers_lock:
            self._readers.add(process)
            if self.ended:
                process.kill()

    def remove_reader(self, process: subprocess.Popen[str]) -> None:
        """Forget a process that has ended."""
        with self._readers_lock:
            self._readers.discard(process)

    def kill_readers(self) -> None:
        """Kill them; after `ended` is set."""
        with self._readers_lock:
            for process in self._readers:
                process.kill()

    def close_descriptors(self) -> None:
        """Close what it keeps open besides the segment."""
        for slot in list(self.foreign):
            self.remove_foreign(slot)
