"""Which job should hold which device: by rank, each where it gets on fastest."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.ids import DeviceId
from polymux.core.jobs.model import EVERYWHERE, JobId
from polymux.core.jobs.view import JobDeviceState, JobState, JobView
from polymux.policy.jobs.occupancy import Occupancy

_HORIZON_NS = 2_000_000_000
"""A move to another device and back has to pay within this."""
_DISTURBING = 0.9
"""What a device is worth whose holder has to leave it, relative to one that is free."""


class Plan:
    """An assignment of devices to the jobs that have work.

    In the order of their rank, jobs get the device that no earlier one has where they get on fastest: by their speed
    there, the time that tasks leave, and the time to move there and back. A job that would get on faster by waiting for
    its turn on a device that is taken waits. One that holds a device leaves those of its own priority theirs.

    Parameters
    ----------
    view : JobView
    ranked : sequence of JobState
        Those that have work; the first choose first.
    occupancy : Occupancy
        What tasks take.

    Attributes
    ----------
    owners : dict of DeviceId to JobState
        Who should hold each device; without, nobody should.
    """

    def __init__(self, view: JobView, ranked: Sequence[JobState], occupancy: Occupancy) -> None:
        self._view = view
        self._occupancy = occupancy
        self.owners: dict[DeviceId, JobState] = {}
        self._places: dict[JobId, JobDeviceState] = {}
        self._weights: dict[DeviceId, int] = {}
        self._waiting: set[int] = set()
        self._taken: dict[str, int] = {}
        self._stays: dict[JobId, str] = {}
        self._note_what_stays()
        working = sum(device.lost is None for device in view.devices.values())
        for job in ranked:
            if len(self.owners) < working:
                self._place(job)
            else:  # nothing is left to choose
                self._waiting.add(job.spec.priority)

    def device_of(self, job: JobState) -> JobDeviceState | None:
        """Device that a job should hold."""
        return self._places.get(job.spec.id)

    def waits_beside(self, holder: JobState) -> bool:
        """Whether a job of the same priority as one that holds a device waits for its turn."""
        return holder.spec.priority in self._waiting

    def reason(self, job: JobState) -> str:
        """Say why a job gets its device."""
        device = self.device_of(job)
        if device is None or job.home in (None, device.spec.id):
            return "its turn"
        return f"it gets on faster than on {job.home}"

    def _place(self, job: JobState) -> None:
        best, best_value, wait_value, wait_for = None, 0.0, 0.0, None
        for device in self._options(job):
            name = device.spec.id
            owner = self.owners.get(name)
            if owner is None and self._fits(job, device):
                value = self._value(job, device)
                if value > best_value or (value == best_value and name == job.device):
                    best, best_value = device, value
                continue
            value = 0.0
            if owner is not None and owner.spec.priority == job.spec.priority:
                share = job.spec.weight / (job.spec.weight + self._weights[name])
                value = share * self._value(job, device)
            if wait_for is None or value > wait_value:
                wait_for, wait_value = name, value
        if best is not None and (best_value >= wait_value or job.device is not None):
            self._own(job, best)
        elif wait_for is not None:
            self._weights[wait_for] = self._weights.get(wait_for, 0) + job.spec.weight
            self._waiting.add(job.spec.priority)

    def _options(self, job: JobState) -> list[JobDeviceState]:
        """Devices that a job may be given, its own first."""
        options = list(self._view.usable(job))
        if job.device is None:
            return options
        own = self._view.devices[job.device]
        out = [own] if own in options else []
        for device in options:
            rivals = [self._view.jobs[name] for name in device.holders]
            if any(rival.spec.priority >= job.spec.priority for rival in rivals):
                continue
            if is_soft(job, own) or device.spec.memory == own.spec.memory == "host":
                out.append(device)
        return out

    def _value(self, job: JobState, device: JobDeviceState) -> float:
        """Work per time that a job gets done on a device by itself; more than 0."""
        value = job.spec.speed(device.spec)
        if device.tasks_priority >= job.spec.priority:
            value *= max(0.01, self._left_by_tasks(job, device))
        if device.holders and device.spec.id != job.device:
            value *= _DISTURBING
        return value * max(0.01, 1.0 - self._move_ns(job, device) / _HORIZON_NS)

    def _left_by_tasks(self, job: JobState, device: JobDeviceState) -> float:
        """Part of a device that its tasks leave to a job that does not come before them."""
        left = 1.0 - self._occupancy.part(device)
        if device.tasks_priority > job.spec.priority or device.tasks_deadline_ns is not None:
            return left
        return max(left, job.spec.weight / (job.spec.weight + device.tasks_weight))

    def _move_ns(self, job: JobState, device: JobDeviceState) -> int:
        """Time to move a job's state there from another device, and back; from host memory it has to come anyway."""
        if job.home is None or job.home == device.spec.id:
            return 0
        nbytes = job.spec.memory_nbytes if job.inside is None else job.spec.needed_nbytes
        source = self._view.devices[job.home].spec
        return 2 * max(device.spec.transfer_ns(nbytes), source.transfer_ns(nbytes))

    def _own(self, job: JobState, device: JobDeviceState) -> None:
        name, needed = job.spec.id, job.spec.needed_nbytes
        self.owners[device.spec.id], self._places[name] = job, device
        self._weights[device.spec.id] = job.spec.weight
        if name in self._stays:
            self._taken[self._stays.pop(name)] -= needed
        pool = _pool(device)
        self._taken[pool] = self._taken.get(pool, 0) + needed

    def _fits(self, job: JobState, device: JobDeviceState) -> bool:
        """Whether a job has room on a device beside those that should run there, and what cannot be moved away."""
        capacity = device.spec.memory_nbytes
        if not capacity:
            return True
        pool, needed = _pool(device), job.spec.needed_nbytes
        taken = self._taken.get(pool, 0) - (needed if self._stays.get(job.spec.id) == pool else 0)
        return taken + needed <= capacity

    def _note_what_stays(self) -> None:
        """Note where the activations of jobs stay even if they get no device."""
        devices = self._view.devices
        for name, job in self._view.jobs.items():
            at = job.device if job.device is not None else job.inside
            if at is None:
                continue
            device = devices[at]
            movable = is_soft(job, device) if job.device is not None else not job.frozen
            if movable and (job.device is not None or device.spec.memory == "own"):
                continue
            pool = self._stays[name] = _pool(device)
            self._taken[pool] = self._taken.get(pool, 0) + job.spec.needed_nbytes


def _pool(device: JobDeviceState) -> str:
    """Which memory a device works in."""
    return "host" if device.spec.memory == "host" else device.spec.id


def is_soft(job: JobState, device: JobDeviceState) -> bool:
    """Whether a job can end its run on a device and then give way, without activations."""
    return EVERYWHERE[0] in job.spec.levels_on(device.spec)


def are_too_large(job: JobState, holder: JobState, device: JobDeviceState) -> bool:
    """Whether a job has no room on a device while the activations of the one that holds it are there."""
    capacity = device.spec.memory_nbytes
    return bool(capacity) and job.spec.needed_nbytes + holder.spec.needed_nbytes > capacity
