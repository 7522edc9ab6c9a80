"""Everybody at once: what happens without a scheduler, for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from polymux.core.errors import InvalidRequest
from polymux.core.jobs.decision import Grant, JobPolicyDecision, LetTasksRun
from polymux.core.jobs.event import JobEvent
from polymux.core.jobs.view import JobView


class Unmanaged:
    """Jobs and tasks use devices at the same time, as without a scheduler; for comparison."""

    exclusive: ClassVar[bool] = False

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy; it has no options."""
        if option:
            raise InvalidRequest(f"job policy 'unmanaged' has no option; it was given {option!r}")
        return cls()

    def decide(self, view: JobView, event: JobEvent, now: int) -> Sequence[JobPolicyDecision]:  # noqa: ARG002
        """Let everything run that waits, each job on the device with the fewest others."""
        tasks = [LetTasksRun(name) for name, device in view.devices.items() if device.tasks_wait]
        if tasks:
            return tasks
        for job in view.jobs.values():
            if job.wants and job.device is None:
                devices = list(view.usable(job))
                if devices:
                    device = min(devices, key=lambda device: len(device.holders))
                    return [Grant(job.spec.id, device.spec.id, "nobody is asked")]
        return []
