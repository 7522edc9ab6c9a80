"""What the engine of jobs knows, as a policy sees it: the engine's own objects, which a policy only reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from polymux.core.ids import DeviceId
from polymux.core.jobs.model import EVERYWHERE, JobDevice, JobId, JobSpec, PreemptionLevel


@dataclass(slots=True)
class JobState:
    """A job, and what it has had so far.

    Parameters
    ----------
    spec : JobSpec
    order : int
        Counted from 1 as jobs are opened.
    wants : bool
        Whether it has work: it holds a device or waits for one.
    device : DeviceId, optional
        That it holds.
    since_ns : int
        Since when it holds that, or waits.
    leaving : PreemptionLevel, optional
        At which it was asked to give way and has not yet.
    leave_by_ns : int
        When the engine does more about it.
    home : DeviceId, optional
        In whose own memory its state is; None: in that of the host.
    inside : DeviceId, optional
        Where it gave way in the middle of a run, so that its activations are there still.
    frozen : bool
        Whether it did so at no boundary: it can go on only there, or on another device that works in host memory.
    held_ns, waited_ns : int
        Time that it held devices, and waited for them, up to `since_ns`.
    run_ns : int
        Time of one of its runs lately; 0: not known.
    boundary_ns : int
        Longest time between two boundaries lately; 0: not known.
    grants, taken_back : int
        How often it was given a device, and asked to give it up.
    """

    spec: JobSpec
    order: int
    wants: bool = False
    device: DeviceId | None = None
    since_ns: int = 0
    leaving: PreemptionLevel | None = None
    leave_by_ns: int = 0
    home: DeviceId | None = None
    inside: DeviceId | None = None
    frozen: bool = False
    held_ns: int = 0
    waited_ns: int = 0
    run_ns: int = 0
    boundary_ns: int = 0
    grants: int = 0
    taken_back: int = 0

    def used_ns(self, now: int) -> int:
        """Time that it held devices until now."""
        return self.held_ns + (max(0, now - self.since_ns) if self.device is not None else 0)


@dataclass(slots=True)
class JobDeviceState:
    """A device, who holds it, and the tasks of queues that want it.

    Parameters
    ----------
    spec : JobDevice
    holders : list of JobId
        At most one, unless the policy shares devices.
    lost : str, optional
        Why it no longer works.
    tasks : bool
        Whether tasks want it or run on it.
    tasks_run : bool
        Whether they may run.
    tasks_leaving : bool
        Whether they were told to leave at their next boundary.
    tasks_priority : int
    tasks_deadline_ns : int, optional
        When the first of them is to start; None: as soon as possible.
    tasks_weight : int
        Of the applications that they are of, together.
    tasks_since_ns : int
        Since when they want it or run.
    tasks_ns : int
        Time for which tasks wanted it or ran, up to `tasks_since_ns`.
    let_in_ns : int
        Since when they may run, if they may.
    tasks_had_ns : int
        Time for which they could run, up to `let_in_ns`.
    """

    spec: JobDevice
    holders: list[JobId] = field(default_factory=list)
    lost: str | None = None
    tasks: bool = False
    tasks_run: bool = False
    tasks_leaving: bool = False
    tasks_priority: int = 0
    tasks_deadline_ns: int | None = None
    tasks_weight: int = 100
    tasks_since_ns: int = 0
    tasks_ns: int = 0
    let_in_ns: int = 0
    tasks_had_ns: int = 0

    @property
    def tasks_wait(self) -> bool:
        """Whether tasks want it and may not run yet."""
        return self.tasks and not self.tasks_run

    def tasks_used_ns(self, now: int) -> int:
        """Time for which tasks wanted it or ran until now."""
        return self.tasks_ns + (max(0, now - self.tasks_since_ns) if self.tasks else 0)

    def tasks_held_ns(self, now: int) -> int:
        """Time for which tasks had it until now."""
        return self.tasks_had_ns + (max(0, now - self.let_in_ns) if self.tasks_run else 0)


@dataclass(slots=True)
class JobView:
    """Everything: jobs and devices, in the order in which they came."""

    jobs: dict[JobId, JobState] = field(default_factory=dict)
    devices: dict[DeviceId, JobDeviceState] = field(default_factory=dict)

    def usable(self, job: JobState) -> Iterator[JobDeviceState]:
        """Devices that work and on which a job may run, whoever holds them now.

        They are among its devices, have the memory for it, know a way to take them back, and, if it was frozen, can
        take it as it is.
        """
        for device in self.devices.values():
            if device.lost is None and is_usable(job.spec, device.spec) and self.can_go_on(job, device):
                yield device

    def can_go_on(self, job: JobState, device: JobDeviceState) -> bool:
        """Whether a job can go on there from where it gave way."""
        if not job.frozen or job.inside is None or job.inside == device.spec.id:
            return True
        return device.spec.memory == self.devices[job.inside].spec.memory == "host"

    def room_nbytes(self, job: JobState, device: JobDeviceState) -> int | None:
        """Memory that a job could have on a device now; None: without limit.

        What others have there and can be spilled is not counted: everything but the activations of jobs that run, are
        frozen, or work in host memory.
        """
        spec = device.spec
        if not spec.memory_nbytes:
            return None
        host = spec.memory == "host"
        taken = 0
        for other in self.jobs.values():
            if other is job:
                continue
            at = other.device if other.device is not None else other.inside
            if at is None or not (at == spec.id or (host and self.devices[at].spec.memory == "host")):
                continue
            if other.device is not None or other.frozen or host:
                taken += other.spec.needed_nbytes
        return spec.memory_nbytes - taken

    def resident_nbytes(self, device: DeviceId) -> int:
        """Bytes of jobs in a device's memory: what they keep, and all of those in the middle of a run there."""
        total = 0
        for job in self.jobs.values():
            if device in (job.device, job.inside):
                total += job.spec.needed_nbytes
            elif job.home == device:
                total += job.spec.memory_nbytes
        return total

    def has_room(self, job: JobState, device: JobDeviceState) -> bool:
        """Whether a job has room on a device now, after spilling what can be spilled."""
        room = self.room_nbytes(job, device)
        return room is None or job.spec.needed_nbytes <= room


def is_usable(spec: JobSpec, device: JobDevice) -> bool:
    """Whether a job could run on a device by itself."""
    if spec.devices and device.id not in spec.devices:
        return False
    if device.memory_nbytes and spec.needed_nbytes > device.memory_nbytes:
        return False
    return bool(spec.levels_on(device))


def unusable(spec: JobSpec, device: JobDevice) -> str | None:
    """Say why a job can never run on a device, with the sizes; None: it can."""
    if is_usable(spec, device):
        return None
    if spec.devices and device.id not in spec.devices:
        return f"{device.id} is not among its devices ({', '.join(spec.devices)})"
    if device.memory_nbytes and spec.needed_nbytes > device.memory_nbytes:
        return (
            f"it needs {spec.needed_nbytes} bytes ({spec.memory_nbytes} for what it keeps),"
            f" {device.id} has {device.memory_nbytes} for jobs"
        )
    given = ", ".join(level.name for level in spec.levels)
    offered = ", ".join(level.name for level in sorted({*device.levels, *EVERYWHERE}))
    return f"it gives way at {given}, {device.id} knows {offered}"
