"""The guard when it, its program or the server is gone, with the real program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from polymux.core.errors import DeviceUnavailable
from polymux.server.jobs import guard as module
from polymux.server.jobs.background import LAST, Background, Way
from polymux.server.jobs.guard import Guard
from polymux.server.jobs.process import JobProcess


class Job:
    """As much of a process as the guard is told."""

    def __init__(self, pid: int = 2**22 + 1) -> None:
        self.pid = pid
        self.group = False
        self.background: Background | None = None


def job() -> JobProcess:
    return cast(JobProcess, Job())


def in_background(background: Background) -> JobProcess:
    found = Job()
    found.background = background
    return cast(JobProcess, found)


def server_ends(guard: Guard) -> None:
    assert guard._process is not None
    assert guard._process.stdin is not None
    guard._process.stdin.close()
    assert guard._process.wait(60) == 0


def kill(guard: Guard) -> int:
    assert guard._process is not None
    guard._process.kill()
    guard._process.wait()
    return guard._process.pid


def test_a_guard_that_cannot_be_replaced_is_told_nothing_and_replaced_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard, first, second = Guard(), job(), cast(JobProcess, Job(2**22 + 2))
    guard.watch(first)
    kill(guard)
    with monkeypatch.context() as patch:
        patch.setattr(module, "EXECUTABLE", Path("/none"))
        with pytest.raises(DeviceUnavailable, match="install Polymux anew"):
            guard.watch(second)
        guard.forget(second)
        guard.check()
    guard.check()
    assert guard._process is not None
    guard.forget(first)
    guard.close()


def test_forgetting_an_earlier_lease_of_a_process_leaves_the_next_one_watched() -> None:
    guard, earlier, later = Guard(), job(), job()
    guard.watch(earlier)
    guard.watch(later)
    guard.forget(earlier)
    assert list(guard._watched.values()) == [later]
    guard.close()


@pytest.mark.parametrize("file", ["cpu.weight", "cpu.shares"])
def test_a_group_has_its_weight_again_when_the_server_has_ended(tmp_path: Path, file: str) -> None:
    (tmp_path / "cpu.idle").write_text("1")
    (tmp_path / file).write_text("0")
    guard = Guard()
    guard.watch(in_background(Background(Way.OWN, str(tmp_path), 300)))
    server_ends(guard)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"cpu.idle": "0", file: "300"}


def test_what_the_guard_cannot_put_back_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cpu.idle").mkdir()
    guard = Guard()
    guard.watch(in_background(Background(Way.OWN, str(tmp_path))))
    server_ends(guard)
    assert "cannot be put back" in capfd.readouterr().err


LEADER_ENDS = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    " print(p.pid, flush=True)"
)


def test_a_session_whose_first_process_has_ended_is_put_back_through_another() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEADER_ENDS], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        leader.wait()
        try:
            file = Path(f"/proc/{child}/autogroup")
            if not file.exists():
                pytest.skip("this kernel has no groups of sessions")
            way = Background(Way.SESSION, str(file), 2, leader.pid)
            assert way.enter(lambda: [child])
            assert file.read_text().split()[-1] == str(LAST)
            guard = Guard()
            guard.watch(
                in_background(Background(Way.SESSION, f"/proc/{leader.pid}/autogroup", 2, leader.pid))
            )
            server_ends(guard)
            assert file.read_text().split()[-1] == "2"
        finally:
            os.kill(child, signal.SIGKILL)
