"""What the engine of jobs knows, and how holding and waiting begin and end."""

from __future__ import annotations

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.jobs.model import JobId
from polymux.core.jobs.view import JobDeviceState, JobState, JobView


class JobsState:
    """The view, and what policies need not see."""

    def __init__(self) -> None:
        self.view = JobView()
        self.jobs_opened = 0
        self._now = 0

    def advance(self, now: int) -> int:
        """Set the time, which never goes back; return it."""
        self._now = max(self._now, now)
        return self._now

    def device(self, name: DeviceId) -> JobDeviceState:
        """Find a device.

        Raises
        ------
        InvalidRequest
            If there is none of that name.
        """
        try:
            return self.view.devices[name]
        except KeyError:
            known = ", ".join(self.view.devices) or "none"
            raise InvalidRequest(f"device {name!r} is unknown; there are: {known}") from None

    def begin_to_wait(self, job: JobState, now: int) -> None:
        """Note that a job has work and holds nothing."""
        if not job.wants:
            job.wants, job.since_ns = True, now

    def hold(self, job: JobState, device: JobDeviceState, now: int) -> None:
        """Note that a job holds a device from now on."""
        job.waited_ns += now - job.since_ns
        job.device, job.since_ns = device.spec.id, now
        job.grants += 1
        device.holders.append(job.spec.id)

    def let_go(self, job: JobState, now: int) -> None:
        """Note that a job holds nothing any more and, for now, waits."""
        if job.device is None:
            return
        self.view.devices[job.device].holders.remove(job.spec.id)
        job.held_ns += now - job.since_ns
        job.device, job.since_ns, job.leaving = None, now, None

    def remove(self, job: JobId, now: int) -> None:
        """Forget a job."""
        gone = self.view.jobs.pop(job)
        self.let_go(gone, now)
