"""The guard: a small process that outlives the server and lets its jobs go on, however the server ended."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
from pathlib import Path

import polymux.server
from polymux.core.errors import DeviceUnavailable
from polymux.server.jobs.background import PATH_NBYTES
from polymux.server.jobs.process import JobProcess

EXECUTABLE = Path(polymux.server.__file__).resolve().parents[1] / "bin" / "polymux-guard"
_RECORD = struct.Struct(f"7i{PATH_NBYTES}s")
"""What is to be done with which process, whether it is a group, whether its threads may be idle, and its background."""
_WATCH, _FORGET = 1, 2


class Guard:
    """Watches over the jobs of this server; started with the first of them.

    Notes
    -----
    Used under the custody's lock. It is told of a job before the job can be stopped, and reads what it was told even
    when the server is gone by then. One that is killed is replaced.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._watched: dict[int, JobProcess] = {}

    def watch(self, job: JobProcess) -> None:
        """Have a job continued when the server ends.

        Raises
        ------
        DeviceUnavailable
            When the guard cannot be started.
        """
        self._watched[job.pid] = job
        if self._process is None or self._process.poll() is not None:
            self._start()
        else:
            self._tell(_WATCH, job)

    def forget(self, job: JobProcess) -> None:
        """Leave a job alone from now on."""
        if self._watched.get(job.pid) is job:
            del self._watched[job.pid]
            self._tell(_FORGET, job)

    def check(self) -> None:
        """Replace a guard that has been killed."""
        if self._watched and (self._process is None or self._process.poll() is not None):
            with contextlib.suppress(DeviceUnavailable):  # tried again the next time
                self._start()

    def close(self) -> None:
        """End it; the jobs are the caller's by now."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        for job in self._watched.values():
            self._tell(_FORGET, job)
        self._watched.clear()
        self._process.stdin.close()
        self._process.wait()
        self._process = None

    def _start(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process = None  # so that nothing is written there, should the next one not start
        try:
            self._process = subprocess.Popen(
                [EXECUTABLE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, cwd="/"
            )
        except OSError as error:
            raise DeviceUnavailable(
                f"{EXECUTABLE} cannot be started ({error.strerror}), so no job may be stopped; install Polymux anew"
            ) from None
        for job in self._watched.values():
            self._tell(_WATCH, job)

    def _tell(self, what: int, job: JobProcess) -> None:
        if self._process is None or self._process.stdin is None:
            return
        back = job.background
        undo = (0, 0, 0, b"")
        if back is not None:
            undo = (int(back.way), back.before, back.session, os.fsencode(back.path))
        record = _RECORD.pack(what, job.pid, job.group, True, *undo)
        with contextlib.suppress(OSError):  # it has been killed; `check` notices
            os.write(self._process.stdin.fileno(), record)
