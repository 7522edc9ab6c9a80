"""The processes of jobs from the time that a lease holds them until they are as they were before."""

from __future__ import annotations

import threading

from polymux.server.jobs.background import sweep
from polymux.server.jobs.guard import Guard
from polymux.server.jobs.process import JobProcess, can_idle

PATIENCE_S = 2.0
"""How long it is tried to put a job back that the kernel does not let change yet."""


class Custody:
    """Has processes watched over and in the background; usable from any thread.

    Notes
    -----
    The kernel may take a change only some time later, so `take` may wait; `release` leaves that to a thread.
    """

    def __init__(self, guard: Guard | None = None) -> None:
        self._guard = guard if guard is not None else Guard()
        self._may_idle = can_idle()
        self._lock = threading.Lock()
        self._releasing: dict[int, threading.Thread] = {}
        sweep()

    def await_release(self, pid: int) -> None:
        """Return when a process is as it was before an earlier lease: else that would count as how it was."""
        with self._lock:
            thread = self._releasing.get(pid)
        if thread is not None:
            thread.join()

    def take(self, process: JobProcess) -> None:
        """Have a process watched over, and in the background as far as the kernel has it so.

        Raises
        ------
        DeviceUnavailable
            When it cannot be watched over; it is as before.
        """
        self._watch(process)
        process.enter_background(self._may_idle, self._watch)

    def release(self, process: JobProcess) -> None:
        """Undo everything: what can be done at once is done when this returns. Twice is fine."""
        process.close()
        if process.leave_background():
            self._forget(process)
            return
        with self._lock:
            if process.pid in self._releasing:
                return
            thread = threading.Thread(
                target=self._finish, args=(process,), name="polymux-job-release", daemon=True
            )
            self._releasing[process.pid] = thread
            thread.start()

    def check(self) -> None:
        """Replace a guard that has been killed."""
        with self._lock:
            self._guard.check()

    def end(self) -> None:
        """Wait for what is being undone, and end the guard."""
        for thread in list(self._releasing.values()):
            thread.join()
        with self._lock:
            self._guard.close()

    def _finish(self, process: JobProcess) -> None:
        if process.leave_background(PATIENCE_S):
            self._forget(process)
        else:
            print(
                f"polymux: process {process.pid} stays in the background: the kernel takes no change",
                flush=True,
            )
        with self._lock:
            del self._releasing[process.pid]

    def _watch(self, process: JobProcess) -> None:
        with self._lock:
            self._guard.watch(process)

    def _forget(self, process: JobProcess) -> None:
        with self._lock:
            self._guard.forget(process)
