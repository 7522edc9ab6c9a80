"""The door of a device: its streams' tasks wait there while a job has the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from polymux.core.event import NORMAL_WEIGHT
from polymux.core.ids import DeviceId, StreamId
from polymux.server.jobs.figures import Waits

_LOWEST = -(2**31)
_FORGETS = 8
"""A longest time for which tasks had the device that is not reached again loses this part of itself each time."""


class Gated(Protocol):
    """The part of a stream's worker that lets its tasks run or keeps them."""

    def guard(self, on: bool) -> None:
        """Have tasks wait until they are let in."""

    def let_in(self) -> None:
        """Let the tasks run that wait."""

    def leave(self) -> None:
        """Have the tasks ask anew."""


@dataclass(slots=True)
class _Stream:
    worker: Gated
    inside: bool = False
    asked_ns: int | None = None
    priority: int = _LOWEST
    deadline_ns: int | None = None
    weight: int = 0


@dataclass(slots=True)
class Door:
    """All streams of one device; used under the driver's lock.

    Notes
    -----
    While no job may use the device it is not guarded, and tasks run without asking.
    """

    device: DeviceId
    guarded: bool = False
    leaving: bool = False
    """Whether the tasks have been told to leave and have not all."""
    since_ns: int = 0
    """Since when tasks run there without having left."""
    waits: Waits = field(default_factory=Waits)
    """Of tasks, for the job that has the device."""
    _streams: dict[StreamId, _Stream] = field(default_factory=dict)
    _longest_ns: int = 0

    def add(self, stream: StreamId, worker: Gated) -> None:
        """Add a stream, before the first job comes."""
        self._streams[stream] = _Stream(worker)

    def guard(self, now: int) -> bool:
        """Have tasks ask from now on; what runs is inside. False: it has no streams."""
        self.guarded = True
        self.since_ns = now
        for stream in self._streams.values():
            stream.inside, stream.asked_ns, stream.priority, stream.deadline_ns = True, None, _LOWEST, None
            stream.worker.guard(True)
        return bool(self._streams)

    def unguard(self) -> bool:
        """Let all tasks run without asking; tells whether any asked or ran."""
        busy = self.busy
        self.guarded = self.leaving = False
        for stream in self._streams.values():
            stream.inside, stream.asked_ns = False, None
            stream.worker.guard(False)
        return busy

    @property
    def busy(self) -> bool:
        """Whether tasks run or wait."""
        return any(stream.inside or stream.asked_ns is not None for stream in self._streams.values())

    @property
    def occupied(self) -> bool:
        """Whether tasks run."""
        return any(stream.inside for stream in self._streams.values())

    def ask(
        self,
        stream_id: StreamId,
        priority: int,
        deadline_ns: int | None,
        now: int,
        weight: int = NORMAL_WEIGHT,
    ) -> bool:
        """Note that a stream has tasks that want to run; tells whether all have left now, as they were told."""
        stream = self._streams[stream_id]
        stream.priority, stream.deadline_ns, stream.weight = priority, deadline_ns, weight
        inside, stream.inside = stream.inside, False
        if stream.asked_ns is None:
            stream.asked_ns = now
        return inside and self._settle(now)

    def urgency(self) -> tuple[int, int | None, int]:
        """Highest priority of what runs and waits, when the first task is to start (None: at once), and whose weight.

        A task's deadline is the time of its end, so that the longest time for which tasks had the device lately is
        taken off.
        """
        present = [s for s in self._streams.values() if s.inside or s.asked_ns is not None]
        priority = max((stream.priority for stream in present), default=_LOWEST)
        weight = sum(s.weight for s in present if s.priority == priority) or NORMAL_WEIGHT
        asking = [stream for stream in present if stream.asked_ns is not None]
        deadlines = [stream.deadline_ns for stream in asking if stream.deadline_ns is not None]
        if not deadlines or len(deadlines) < len(asking):
            return priority, None, weight
        return priority, min(deadlines) - self._longest_ns, weight

    def let_in(self, now: int) -> None:
        """Let the tasks run that wait."""
        if not self.occupied:
            self.since_ns = now
        for stream in self._streams.values():
            if stream.asked_ns is not None:
                self.waits.add(now - stream.asked_ns)
                stream.asked_ns, stream.inside = None, True
                stream.worker.let_in()

    def leave(self) -> None:
        """Have the tasks that run ask anew at their next boundary."""
        if not self.leaving and self.occupied:
            self.leaving = True
            for stream in self._streams.values():
                if stream.inside:
                    stream.worker.leave()

    def drained(self, stream_id: StreamId, now: int) -> None:
        """Note that no task of a stream runs or waits."""
        stream = self._streams[stream_id]
        inside, stream.inside, stream.asked_ns = stream.inside, False, None
        if inside:
            self._settle(now)

    def _settle(self, now: int) -> bool:
        """Take note when nobody is inside any more; tells whether they were told to leave."""
        if self.occupied:
            return False
        left, self.leaving = self.leaving, False
        if not left:
            self._longest_ns = max(now - self.since_ns, self._longest_ns - self._longest_ns // _FORGETS)
        return left
