"""Reading the processor time of processes whose threads, or which themselves, end meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polymux.bench.policies.processor_time import ProcessorTime
from polymux.core.errors import PolymuxError


def test_a_process_that_has_ended_is_told_by_its_number() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(PolymuxError, match=f"process {process.pid} ended"):
        ProcessorTime.of(process.pid)


def test_a_thread_that_ends_while_it_is_read_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path.iterdir

    def and_one_that_has_ended(folder: Path) -> list[Path]:
        return [*listed(folder), folder / "999999999"]

    monkeypatch.setattr(Path, "iterdir", and_one_that_has_ended)
    assert ProcessorTime.of(os.getpid()).ran_ns > 0


def test_a_process_that_ends_between_its_threads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([folder / str(process.pid)]))
    with pytest.raises(PolymuxError, match=f"process {process.pid} ended"):
        ProcessorTime.of(process.pid)
