"""A gate between a training process and an inference process: training waits at its boundaries while it is wanted.

Nothing of the runtime is in it: one byte in shared memory that training reads at every boundary, and two pipes for
waiting. It is what somebody would write by hand, and what boundaries alone can do at their best.
"""

from __future__ import annotations

import mmap
import os
import select
import time
from pathlib import Path

TIMEOUT_S = 60.0
"""Longest wait for the other side, which is gone by then."""
_WANTED, _YIELDED, _GO = "wanted", "yielded", "go"


def make_gate(folder: Path) -> None:
    """Make a gate's files in a folder."""
    (folder / _WANTED).write_bytes(bytes(mmap.PAGESIZE))
    for name in (_YIELDED, _GO):
        os.mkfifo(folder / name)


class _Side:
    """One end of a gate.

    Parameters
    ----------
    folder : pathlib.Path
        In which `make_gate` was called.
    """

    def __init__(self, folder: Path) -> None:
        with (folder / _WANTED).open("r+b") as file:
            self._wanted = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._yielded, self._go = (os.open(folder / name, os.O_RDWR) for name in (_YIELDED, _GO))

    def close(self) -> None:
        """Let go of the files."""
        os.close(self._yielded)
        os.close(self._go)
        self._wanted.close()


class TrainingSide(_Side):
    """What the training process has of a gate."""

    def boundary(self) -> None:
        """Wait here while the other side wants the cores."""
        if self._wanted[0]:
            os.write(self._yielded, b"y")
            _receive(self._go, "inference does not give the cores back")


class InferenceSide(_Side):
    """What the inference process has of a gate."""

    held = False

    def take(self) -> int:
        """Want the cores and wait for the next boundary; returns how long that took, in ns."""
        if self.held:
            return 0
        start = time.perf_counter_ns()
        self._wanted[0] = 1
        _receive(self._yielded, "training reaches no boundary")
        self.held = True
        return time.perf_counter_ns() - start

    def give(self) -> None:
        """Let training go on."""
        if self.held:
            self.held = False
            self._wanted[0] = 0
            os.write(self._go, b"g")


def _receive(pipe: int, problem: str) -> None:
    ready, _, _ = select.select([pipe], [], [], TIMEOUT_S)
    if not ready:
        raise TimeoutError(f"{problem} for {TIMEOUT_S:g} s")
    os.read(pipe, 1)
