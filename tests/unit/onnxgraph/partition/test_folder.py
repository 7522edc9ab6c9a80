"""Files of parts go with the process, however it ends."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from polymux.onnxgraph.partition.folder import PREFIX, PartsFolder, remove_leftovers


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_when_it_is_closed_and_others_stay(place: Path) -> None:
    one, other = PartsFolder(), PartsFolder()
    (one.new() / "part").write_text("x")
    one.close()
    one.close()
    assert not one.path.exists()
    assert other.path.exists()
    other.close()


def test_what_a_killed_process_left_goes_with_the_next_one(place: Path) -> None:
    program = "import os, sys, tempfile; from polymux.onnxgraph.partition.folder import PartsFolder\n"
    program += f"tempfile.tempdir = {str(place)!r}; PartsFolder().new(); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == -9
    assert len(list(place.glob(PREFIX + "*"))) == 1
    assert remove_leftovers(place) == 1
    assert list(place.glob(PREFIX + "*")) == []
