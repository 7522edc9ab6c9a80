"""What to do with jobs and devices: what a policy decides, and what the engine makes of it for its driver."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.decision import WakeAt
from polymux.core.ids import DeviceId
from polymux.core.jobs.model import JobId, PreemptionLevel


@dataclass(frozen=True, slots=True)
class Grant:
    """A job may run on a device from now on; it goes on where it gave way.

    Parameters
    ----------
    job : JobId
    device : DeviceId
    reason : str
    source : DeviceId, optional
        In whose memory its state is; None: in that of the host. Filled in by the engine, as the rest.
    nbytes : int
        Of its state that is to come into the memory of the device: weights when it next runs, and activations if it
        gave way in the middle of a run.
    spill : tuple of JobId
        Jobs whose state has to leave the memory of the device for that of the host before.
    """

    job: JobId
    device: DeviceId
    reason: str = ""
    source: DeviceId | None = None
    nbytes: int = 0
    spill: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Take a job's device away.

    Parameters
    ----------
    job : JobId
    level : PreemptionLevel
        At `STEP`, `BOUNDARY` and `LAUNCHES` the job is asked, and the driver tells by `JobYielded` that it holds
        nothing; at `IDLE` and `STOP` the driver does it, and what follows in the same answer relies on it.
    within_ns : int, ns
        A job that has not given way by then is stopped by the engine where that is possible, else evicted some time
        after.
    reason : str
    """

    job: JobId
    level: PreemptionLevel
    within_ns: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Evict:
    """A job's lease is over: it is told so, and whatever it does, its device goes to others. Made by the engine."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class RejectJob:
    """A job that was opened can run nowhere; the reason names sizes and devices. Made by the engine."""

    job: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class LetTasksRun:
    """The tasks that wait for a device may run there until `TasksDone` or `TasksLeft`."""

    device: DeviceId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HoldTasks:
    """The tasks that run on a device are to leave it at their next boundary, and to wait there with those to come.

    The driver tells by `TasksLeft` that they have, or by `TasksDone` that there are none any more. Until then the tasks
    have the device, and what comes there meanwhile waits.
    """

    device: DeviceId
    reason: str = ""


JobPolicyDecision = Grant | TakeBack | LetTasksRun | HoldTasks | WakeAt
"""What a policy may decide."""
JobDecision = Grant | TakeBack | Evict | RejectJob | LetTasksRun | HoldTasks | WakeAt
"""What a driver carries out, in this order."""
