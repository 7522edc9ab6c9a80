"""What a simulation is about: devices with their speeds, applications with their queues of tasks; as values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId


@dataclass(frozen=True, slots=True)
class ModelDevice:
    """A device.

    Parameters
    ----------
    id : DeviceId
    speed : float
        Its tasks take their `task_ns` divided by this.
    streams : int
        They divide the device: each is as fast as its equal part.
    memory_nbytes : int
        Capacity in bytes.
    bandwidth_bytes_per_s : float
        Of copies into it and out of it, each.
    launch_ahead : int
        Tasks that a stream may have given to the device and that nobody can call back.
    """

    id: DeviceId
    speed: float = 1.0
    streams: int = 1
    memory_nbytes: int = 1 << 34
    bandwidth_bytes_per_s: float = math.inf
    launch_ahead: int = 1

    def __post_init__(self) -> None:
        for name in ("speed", "streams", "memory_nbytes", "bandwidth_bytes_per_s", "launch_ahead"):
            if not getattr(self, name) > 0:
                raise InvalidRequest(f"device {self.id}: {name} is {getattr(self, name)}; give more than 0")

    def copy_ns(self, nbytes: int) -> int:
        """Time of one copy of `nbytes`, in or out, in ns."""
        return math.ceil(nbytes / self.bandwidth_bytes_per_s * 1e9)

    def task_ns(self, task_ns: int) -> int:
        """Time on one of its streams of a task that takes `task_ns` on a device of speed 1, in ns."""
        return max(1, math.ceil(task_ns * self.streams / self.speed))


@dataclass(frozen=True, slots=True)
class ModelQueue:
    """A queue whose tasks are all submitted when it opens.

    Parameters
    ----------
    tasks : int
        How many.
    task_ns : int
        Time of each on a device of speed 1, in ns.
    read_nbytes : int
        Data that the tasks only read: it is copied ahead of a migration.
    written_nbytes : int
        Data that every task writes: it is copied after the last task on the old device.
    pinned : DeviceId, optional
        The only device on which it may run.
    """

    tasks: int
    task_ns: int
    read_nbytes: int = 0
    written_nbytes: int = 0
    pinned: DeviceId | None = None

    def __post_init__(self) -> None:
        for name, least in (("tasks", 0), ("task_ns", 1), ("read_nbytes", 0), ("written_nbytes", 0)):
            if getattr(self, name) < least:
                raise InvalidRequest(f"queue: {name} is {getattr(self, name)}; give {least} or more")

    @property
    def nbytes(self) -> int:
        """All of its data."""
        return self.read_nbytes + self.written_nbytes


@dataclass(frozen=True, slots=True)
class ModelApplication:
    """An application: its queues open when it arrives and close with their last task.

    Parameters
    ----------
    name : str
    queues : tuple of ModelQueue
    arrives_ns : int
    priority : int
        Larger is more urgent.
    weight : int
        Its share of device time relative to others, in percent.
    """

    name: str
    queues: tuple[ModelQueue, ...]
    arrives_ns: int = 0
    priority: int = 0
    weight: int = 100
