"""Folders that go with their process, however it ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from polymux.process_folder import PREFIX, ProcessFolder, remove_leftovers


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_when_it_is_closed_and_others_stay() -> None:
    one, other = ProcessFolder(), ProcessFolder()
    (one.new() / "part").write_text("x")
    one.close()
    one.close()
    assert not one.path.exists()
    assert other.path.exists()
    other.close()


def test_a_folder_that_nobody_has_any_more_goes() -> None:
    folder = ProcessFolder()
    path = folder.path
    del folder
    gc.collect()
    assert not path.exists()


def test_a_fork_of_the_process_leaves_the_folder_to_it() -> None:
    folder = ProcessFolder()
    child = os.fork()
    if child == 0:
        folder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert folder.path.is_dir()
    folder.close()
    assert not folder.path.exists()


def test_folders_of_processes_that_were_killed_are_removed_and_no_others(place: Path) -> None:
    code = "from polymux.process_folder import *; its = ProcessFolder(); print(its.path, flush=True); input()"
    environment = {**os.environ, "TMPDIR": str(place)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    with start() as dead, start() as alive:
        folders = [Path(process.stdout.readline().strip()) for process in (dead, alive) if process.stdout]
        assert all(folder.is_dir() for folder in folders)
        (place / (PREFIX + "link")).symlink_to(place)
        dead.kill()
        dead.wait(20)
        assert remove_leftovers(place) == 1
        assert [folder.exists() for folder in folders] == [False, True]
        alive.communicate("\n", 20)  # it ends by itself
        assert not folders[1].exists()
    assert [path.name for path in place.iterdir()] == [PREFIX + "link"]
