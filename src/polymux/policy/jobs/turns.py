"""How long a job keeps a device before others of its priority have their turn."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.jobs.model import JobId
from polymux.core.jobs.view import JobDeviceState, JobState, JobView
from polymux.policy.jobs.levels import MS

_LEAST_NS = 100 * MS
_RUNS = 2
"""A turn has time for so many runs: who gives way in the middle of one leaves its activations lying about."""
_MOST_NS = 5_000 * MS
_PAYS = 10
"""Where state has to be spilled for a job, its turn is longer by so many times what that and bringing it take."""


class Turns:
    """The turns of all jobs: device time since each began, whoever interrupted it."""

    def __init__(self) -> None:
        self._turns: dict[JobId, _Turn] = {}

    def update(self, view: JobView, now: int) -> None:
        """End those that are over, and those of jobs that are gone or have nothing to do."""
        for name, turn in list(self._turns.items()):
            job = view.jobs.get(name)
            if job is None or not job.wants or job.used_ns(now) - turn.began_ns >= turn.length_ns:
                del self._turns[name]

    def begin(self, view: JobView, job: JobState, device: JobDeviceState, now: int) -> None:
        """Begin the turn of a job that gets or keeps a device, unless it has one."""
        if job.spec.id not in self._turns:
            length_ns = min(max(_LEAST_NS, _RUNS * job.run_ns), _MOST_NS)
            length_ns += _PAYS * _exchange_ns(view, job, device)
            self._turns[job.spec.id] = _Turn(job.used_ns(now), length_ns)

    def lasts(self, job: JobState) -> bool:
        """Whether a job has its turn."""
        return job.spec.id in self._turns

    def end_ns(self, job: JobState, now: int) -> int:
        """When the turn of a job that holds a device is over."""
        turn = self._turns.get(job.spec.id)
        return now if turn is None else now + turn.length_ns - (job.used_ns(now) - turn.began_ns)


@dataclass(frozen=True, slots=True)
class _Turn:
    began_ns: int
    length_ns: int


def _exchange_ns(view: JobView, job: JobState, device: JobDeviceState) -> int:
    """Time to spill the state of others for a job and to bring its own; 0 where there is room for all."""
    spec = device.spec
    if not spec.memory_nbytes or job.home == spec.id or spec.memory == "host":
        return 0
    others = sum(other.spec.memory_nbytes for other in view.jobs.values() if other.home == spec.id)
    if others + job.spec.needed_nbytes <= spec.memory_nbytes:
        return 0
    return 2 * spec.transfer_ns(job.spec.memory_nbytes)
