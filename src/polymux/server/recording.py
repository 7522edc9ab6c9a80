"""Writes every event and decision of the engine to a file, for `polymux replay`."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from polymux.core.errors import ConfigError
from polymux.sched.recording import QUEUES, Step, write_step


class Recorder:
    """Appends steps as they happen; used by the scheduler thread.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """

    def __init__(self, path: Path | None, policy: str) -> None:
        self._file: TextIO | None = None
        if path is None:
            return
        try:
            self._file = open(path, "w", buffering=1)  # noqa: SIM115, closed by close(); whole lines even after a kill
        except OSError as error:
            raise ConfigError(str(path), "record", str(path), f"cannot be written: {error}") from None
        self._file.write(QUEUES.write_header(policy) + "\n")

    def record(self, step: Step) -> None:
        """Write one step."""
        if self._file is not None:
            self._file.write(write_step(step) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
