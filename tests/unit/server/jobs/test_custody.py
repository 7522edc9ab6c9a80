"""Processes are put back when their lease ends, also when the kernel takes that only later."""

from __future__ import annotations

import threading
from typing import cast

from polymux.server.jobs.custody import Custody
from polymux.server.jobs.process import JobProcess
from tests.unit.server.jobs.rig import NoGuard, Process


class Log(NoGuard):
    """A guard that notes in which order things happen."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def watch(self, job: JobProcess) -> None:
        self.events.append("watch")

    def forget(self, job: JobProcess) -> None:
        self.events.append("forget")


class Slow(Process):
    """Cannot be put back at once."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events
        self.taken = threading.Event()

    def close(self) -> None:
        super().close()
        self.events.append("close")

    def leave_background(self, patience_s: float = 0.0) -> bool:
        if not patience_s:
            return False
        assert self.taken.wait(30)
        self.events.append("left")
        return True


def test_a_process_is_forgotten_by_the_guard_only_when_it_is_as_before() -> None:
    events: list[str] = []
    custody, process = Custody(Log(events)), Slow(events)
    custody.take(cast(JobProcess, process))
    custody.release(cast(JobProcess, process))
    assert events == ["watch", "close"], "whoever ends the lease does not wait"
    process.taken.set()
    custody.await_release(process.pid)
    assert events == ["watch", "close", "left", "forget"]
    custody.end()
