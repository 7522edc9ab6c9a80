"""Batches and the threads of the front end and its clients on the same cores: how far each of them is."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from polymux.core.ids import DeviceId
from polymux.core.serving.model import BatchId, ServingDevice
from polymux.perfmodel.interference import Interference
from polymux.sim.serving.host import Host
from polymux.sim.serving.neighbours import Neighbours, Progress


@dataclass(slots=True, eq=False)
class Job:
    """Something that a thread does.

    Parameters
    ----------
    piece_ns : float
        Processor time of each of its pieces.
    pieces : int
        That are to be done; other jobs get their turn between them.
    done : callable
        Called with the job when the last one is done.
    began_ns, seen_ns : int
        When its first piece was begun, and done.
    """

    piece_ns: float
    pieces: int
    done: Callable[[Job], None]
    began_ns: int = -1
    seen_ns: int = -1


class HostThread:
    """A thread with its jobs, one piece of one of them at a time.

    Attributes
    ----------
    piece : int
        Number of the piece that is being done, or will be next.
    end_ns : int
        When it will be done by now; -1: there is none.
    """

    def __init__(self) -> None:
        self.piece = 0
        self.end_ns = -1
        self._told: tuple[int, int] = (0, -1)
        self._jobs: deque[Job] = deque()
        self._left_ns = 0.0
        self._since_ns = 0

    @property
    def is_busy(self) -> bool:
        """Whether it has something to do."""
        return bool(self._jobs)

    def give(self, job: Job, now: int) -> None:
        """Have a job done after those that it has."""
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._begin(now)

    def finish_piece(self, now: int) -> Job | None:
        """Go on to the next piece; return the job if this was its last one."""
        job = self._jobs.popleft()
        if job.seen_ns < 0:
            job.seen_ns = now
        job.pieces -= 1
        if job.pieces:
            self._jobs.append(job)
        self.piece += 1
        self.end_ns = -1
        if self._jobs:
            self._begin(now)
        return None if job.pieces else job

    def renew(self, before: float, speed: float, now: int) -> None:
        """Take over that its speed was `before` until now, and is `speed` from now on."""
        if self._jobs:
            self._left_ns = max(0.0, self._left_ns - (now - self._since_ns) * before)
            self._since_ns = now
            self.end_ns = now + math.ceil(self._left_ns / speed)

    def has_news(self) -> bool:
        """Whether the end of its piece is another one than at the last call."""
        told, self._told = self._told, (self.piece, self.end_ns)
        return self.end_ns >= 0 and told != self._told

    def _begin(self, now: int) -> None:
        job = self._jobs[0]
        if job.began_ns < 0:
            job.began_ns = now
        self._left_ns, self._since_ns = job.piece_ns, now


class SharedCores(Neighbours):
    """What runs beside what on a host's device, whose batches and threads slow each other down, and on other devices.

    Parameters
    ----------
    host : Host
    interference : Interference
    devices : tuple of ServingDevice

    Attributes
    ----------
    threads : tuple of HostThread
        The clients' and the front end's.
    """

    def __init__(self, host: Host, interference: Interference, devices: tuple[ServingDevice, ...]) -> None:
        super().__init__(interference, devices)
        self._host = host
        self.threads = (HostThread(), HostThread())
        self._speed = 1.0

    def renew(self, device: DeviceId, now: int) -> list[tuple[BatchId, int]]:
        """Take over what has changed on a device, also for the threads."""
        if device == self._host.device:
            busy = sum(progress.dispatch.units for progress in self._running[device].values())
            count = self._busy_threads
            speed = self._host.thread_speed(count, busy, self._units[device]) if count else 1.0
            for thread in self.threads:
                thread.renew(self._speed, speed, now)
            self._speed = speed
        return super().renew(device, now)

    def thread_news(self) -> Iterator[tuple[int, HostThread]]:
        """Yield the threads, with their numbers, whose piece ends at another time than at the last call."""
        for number, thread in enumerate(self.threads):
            if thread.has_news():
                yield number, thread

    @property
    def _busy_threads(self) -> int:
        return sum(thread.is_busy for thread in self.threads)

    def _slowdown(self, running: Mapping[BatchId, Progress], progress: Progress) -> float:
        slowdown = super()._slowdown(running, progress)
        dispatch, host = progress.dispatch, self._host
        threads = self._busy_threads if dispatch.device == host.device else 0
        if not threads:
            return slowdown
        busy = sum(other.dispatch.units for other in running.values())
        units = self._units[dispatch.device]
        return slowdown * host.slowdown(dispatch.model, dispatch.units, threads, busy, units)
