"""Training programs in processes of their own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import IO

import torch

from tests.training.trainer import EPOCHS
from tests.unit.training.loops import Loop

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100


class Trainer:
    """One run of `tests.training.trainer`; what it says is read line by line.

    Parameters
    ----------
    checkpoint : Path
    arguments : str
        Further ones.
    """

    def __init__(self, checkpoint: Path, *arguments: str) -> None:
        self.log = checkpoint.with_suffix(".log")
        command = [sys.executable, "-m", "tests.training.trainer", str(checkpoint), *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        self._output.close()

    @property
    def _output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def until(self, words: str) -> str:
        """Read until a line begins with these words; return it."""
        for line in self._output:
            if line.startswith(words):
                return line.strip()
        raise AssertionError(f"it ended before it said {words!r}: {self.said()}")

    def end(self) -> int:
        """Read the rest and wait until it has ended; return its exit status."""
        self.rest = self._output.read()
        return self.process.wait(TIMEOUT_S)

    def said(self) -> str:
        """What it wrote to standard error."""
        with contextlib.suppress(FileNotFoundError):
            return self.log.read_text()
        return ""


@cache
def plain_digest() -> str:
    """What a trainer says at its end when nobody disturbs it, computed by a loop that knows nothing of Polymux."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    loop = Loop().plain(EPOCHS, evaluate=False)
    torch.set_num_threads(before)
    return loop.digest()
