"""What happened to jobs and devices: everything that a driver tells the engine of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from polymux.core.ids import DeviceId
from polymux.core.jobs.model import JobDevice, JobId, JobSpec


class YieldReason(Enum):
    """How a job came to hold nothing."""

    STEP = "step"
    """At the end of a run: it has no activations."""
    BOUNDARY = "boundary"
    """At a boundary in the middle of a run."""
    STOPPED = "stopped"
    """The operating system stopped it, or lets it run only on idle cores."""
    NO_WORK = "no work"
    """It has nothing to do until a `JobWants`."""


@dataclass(frozen=True, slots=True)
class JobOpened:
    """A job is there; it wants nothing yet. Answered by a `RejectJob` if it can run nowhere."""

    spec: JobSpec


@dataclass(frozen=True, slots=True)
class JobClosed:
    """A job is over, or its process is gone; what it held is free."""

    job: JobId


@dataclass(frozen=True, slots=True)
class JobWants:
    """A job has work and waits for a device."""

    job: JobId


@dataclass(frozen=True, slots=True)
class JobYielded:
    """A job gave way: after a `TakeBack`, or by itself. Unless it has no work, it waits for a device again.

    A `TakeBack` at a level of the operating system counts as carried out at once; to answer it changes nothing.
    """

    job: JobId
    reason: YieldReason = YieldReason.BOUNDARY


@dataclass(frozen=True, slots=True)
class JobReported:
    """What a job measured lately.

    Parameters
    ----------
    job : JobId
    run_ns : int, ns
        Time of a run on its device; 0: not known.
    boundary_ns : int, ns
        Longest time between two boundaries since the last report; 0: not known.
    """

    job: JobId
    run_ns: int = 0
    boundary_ns: int = 0


@dataclass(frozen=True, slots=True)
class TasksWaiting:
    """Tasks of queues want a device; sent again when what it says of them changes.

    Parameters
    ----------
    device : DeviceId
    priority : int
        The highest of them.
    deadline_ns : int, optional
        Monotonic time by which the first of them is to start; None: as soon as possible.
    weight : int
        Of the applications that have tasks of that priority, together; 100 is one of normal weight.
    """

    device: DeviceId
    priority: int = 0
    deadline_ns: int | None = None
    weight: int = 100


@dataclass(frozen=True, slots=True)
class TasksLeft:
    """The tasks of a device have left it after a `HoldTasks`, and want it again; else as `TasksWaiting`."""

    device: DeviceId
    priority: int = 0
    deadline_ns: int | None = None
    weight: int = 100


@dataclass(frozen=True, slots=True)
class TasksDone:
    """No task of a queue runs or waits on a device any more."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class JobDeviceAdded:
    """Jobs may hold a device; or it is back."""

    device: JobDevice


@dataclass(frozen=True, slots=True)
class JobDeviceLost:
    """A device no longer works, and what is in its own memory is gone."""

    device: DeviceId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JobTick:
    """The time that a `WakeAt` asked for has come."""


JobEvent = (
    JobOpened
    | JobClosed
    | JobWants
    | JobYielded
    | JobReported
    | TasksWaiting
    | TasksLeft
    | TasksDone
    | JobDeviceAdded
    | JobDeviceLost
    | JobTick
)
