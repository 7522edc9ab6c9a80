"""One client: its memory, queues, kernels, grants and worker processes."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId, QueueId, SessionId, queue_id
from polymux.segment import Segment
from polymux.server.connection import Peer
from polymux.server.kernels import SessionKernels
from polymux.server.placement import Home, Owner

if TYPE_CHECKING:
    from polymux.server.worker_process import WorkerProcess


MAX_SHARED = 1024
"""Exported and imported buffers of one session: each takes descriptors of the server."""


@dataclass(slots=True, eq=False)
class TaskQueue:
    """One open queue as the server's threads see it.

    Notes
    -----
    `home`, `stream` and `refused` are the scheduler thread's; `looked_home` is the accelerator thread's that has
    the queue.
    """

    id: QueueId
    session: Session
    index: int
    name: str
    priority: int
    pinned: DeviceId | None
    opened_ns: int
    home: DeviceId | None = None
    """The device where it belongs while it is away because of a missing kernel."""
    looked_home: bool = False
    """Whether the scheduler has just said that the head task is to run here."""
    closed: list[Callable[[], None]] = field(default_factory=list)
    """What to call when no thread has it any more; filled when it is being closed."""
    closing: bool = False
    tasks: int = 0
    """Tasks completed on streams that it has left."""
    busy_ns: int = 0
    waiting_ns: int = 0
    """From submit to start, summed over those tasks."""
    migrations: int = 0


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
    """

    def __init__(
        self,
        id: SessionId,
        name: str,
        peer: Peer,
        segment: Segment,
        kernels: SessionKernels,
        worker_nbytes: int,
    ) -> None:
        self.id = id
        self.name = name
        self.peer = peer
        self.segment = segment
        self.kernels = kernels
        self.worker_nbytes = worker_nbytes
        self.owner = Owner(id, f"{name!r} (session {id})")
        self.queues: dict[int, TaskQueue] = {}
        self.tokens: dict[tuple[int, int], str] = {}
        self.foreign: dict[int, Foreign] = {}
        self.workers: dict[str, WorkerProcess] = {}
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
