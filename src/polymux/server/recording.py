"""Writes every event and decision of the server's engines to files, for `polymux replay`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TextIO

from polymux.core.errors import ConfigError
from polymux.sched.recording import JOBS, QUEUES, Format, Step, write_step


class Recorder:
    """Appends the steps of one engine as they happen, until the file takes no more; used by one thread at a time.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """

    def __init__(self, path: Path | None, format_: Format, policy: str) -> None:
        self._file: TextIO | None = None
        if path is None:
            return
        try:
            self._file = open(path, "w", buffering=1)  # noqa: SIM115, closed by close(); whole lines even after a kill
        except OSError as error:
            raise ConfigError(str(path), "record", str(path), f"cannot be written: {error}") from None
        try:
            self._file.write(format_.write_header(policy) + "\n")
        except OSError as error:
            self.close()
            raise ConfigError(str(path), "record", str(path), f"cannot be written: {error}") from None

    def record(self, step: Step) -> None:
        """Write one step; when that fails it is told, and the recording ends there: the server goes on."""
        if self._file is None:
            return
        try:
            self._file.write(write_step(step) + "\n")
        except OSError as error:
            name = self._file.name
            self.close()
            print(f"polymux: the recording {name} ends here: {error.strerror}; free some space", flush=True)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # of what could not be written already
                self._file.close()
            self._file = None


class Recorders:
    """The recording of queues, and that of jobs beside it.

    Parameters
    ----------
    path : Path, optional
        Of the recording of queues; None: nothing is recorded.
    policy, jobs : str
        The policies of queues and of jobs.

    Raises
    ------
    ConfigError
        If a file cannot be written; none stays open.
    """

    def __init__(self, path: Path | None, policy: str, jobs: str) -> None:
        self.queues = Recorder(path, QUEUES, policy)
        try:
            self.jobs = Recorder(None if path is None else beside(path), JOBS, jobs)
        except ConfigError:
            self.queues.close()
            raise

    def close(self) -> None:
        """Close the files."""
        self.queues.close()
        self.jobs.close()


def beside(recording: Path) -> Path:
    """Find the recording of jobs that belongs to one of queues: `run.jobs.jsonl` lies beside `run.jsonl`."""
    return recording.with_name(f"{recording.stem}.jobs{recording.suffix}")
