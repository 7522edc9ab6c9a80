"""Whose turn it is among jobs of one priority: start-time fair queuing of device time, by weight."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.jobs.model import JobId
from polymux.core.jobs.view import JobState, JobView


class FairQueue:
    """Tags of jobs: the one with the least has had least device time for its weight.

    A job that comes, or has had nothing to do, starts at the virtual time: what it did not use is not saved up.

    References
    ----------
    Goyal, Vin, Cheng: Start-time Fair Queuing. SIGCOMM 1996. On several devices: Jin, Chase, Kaur: SFQ(D),
    SIGMETRICS 2004.
    """

    def __init__(self) -> None:
        self._entries: dict[JobId, _Entry] = {}
        self._virtual = 0.0

    def update(self, view: JobView, now: int) -> None:
        """Charge every job what it used, and let those in that have work again."""
        entries = self._entries
        for gone in [name for name in entries if name not in view.jobs]:
            del entries[gone]
        active = []
        for name, job in view.jobs.items():
            used = job.used_ns(now)
            entry = entries.setdefault(name, _Entry(self._virtual, used))
            entry.tag += (used - entry.used_ns) * 100 / job.spec.weight
            entry.used_ns = used
            if job.wants and not entry.active:
                entry.tag = max(entry.tag, self._virtual)
            entry.active = job.wants
            if job.wants:
                active.append(entry.tag)
        if active:
            self._virtual = max(self._virtual, min(active))

    def tag(self, job: JobState) -> float:
        """Device time that a job has had, in ns of one with weight 100."""
        return self._entries[job.spec.id].tag


@dataclass(slots=True)
class _Entry:
    tag: float
    used_ns: int
    active: bool = False
