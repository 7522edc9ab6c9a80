"""Tasks that never pause, beside a job of their own priority, on a real server; what was recorded replays."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from polymux.sched.recording import JOBS
from polymux.sched.replay import replay
from polymux.server.recording import beside
from tests.segment.server_process import ServerProcess, until
from tests.segment.test_leases import HERE, STOPPED, job, jobs

KERNELS = str(HERE / "kernels_of_operator.py")
SECOND_NS = 1_000_000_000


class Flood:
    """Tasks of some milliseconds, so many at a time that the device never runs out of them."""

    def __init__(self, server: ServerProcess, priority: int = 0) -> None:
        self.done = 0
        self._server = server
        self._priority = priority
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        with self._server.connect() as client:
            queue = client.queue(priority=self._priority)
            buffer = queue.zeros(1, "f4")
            under_way = deque([queue.submit("sleep", [buffer], [buffer], seconds=0.004) for _ in range(16)])
            while under_way:
                under_way.popleft().wait(60)
                self.done += 1
                if not self._ending.is_set():
                    under_way.append(queue.submit("sleep", [buffer], [buffer], seconds=0.004))


@contextlib.contextmanager
def recorded(folder: Path, *options: str) -> Iterator[ServerProcess]:
    """A server whose recordings are replayed in the end."""
    recording = folder / "run.jsonl"
    words = ("--device", "cpu", "--kernels", KERNELS, "--record", str(recording), *options)
    with ServerProcess(folder, *words) as server:
        yield server
    with beside(recording).open() as lines:
        result = replay(lines)
    assert (result.difference, result.truncated) == (None, False)
    assert result.steps > 10
    words = ("-m", "polymux.cli", "replay", str(recording))
    said = subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True, timeout=100)
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"run.jobs.jsonl: policy {result.policy}: {result.steps} steps, all decided" in said.stdout


@pytest.mark.parametrize("policy", ["switchflow", "time_slicing"])
def test_tasks_that_never_pause_leave_a_job_of_their_priority_its_part(tmp_path: Path, policy: str) -> None:
    with (
        recorded(tmp_path, "--jobs", policy) as server,
        Flood(server) as flood,
        job(server, tmp_path, STOPPED if policy == "switchflow" else "step,boundary", "steps"),
    ):
        until(lambda: flood.done > 100, 100)
        (before,) = jobs(server).values()
        until(lambda: _of_job(server, "held_ns") > before["held_ns"] + SECOND_NS, 100)
        done = flood.done
        until(lambda: flood.done > done + 20, 100)
        (after,) = jobs(server).values()
        held, waited = (after[key] - before[key] for key in ("held_ns", "waited_ns"))
        assert 0.1 < held / (held + waited) < 0.9, "not exact on a busy machine"


def test_a_job_of_higher_priority_has_tasks_leave_and_those_of_higher_priority_keep_it_out(
    tmp_path: Path,
) -> None:
    with recorded(tmp_path) as server, Flood(server) as flood, server.connect() as client:
        until(lambda: flood.done > 10, 100)
        with client.lease(levels=["boundary"], priority=5) as lease:
            assert lease.wait(100)
            done = flood.done
            assert not lease.check()
            assert flood.done <= done + 1
        until(lambda: flood.done > done + 10, 100)
        with client.lease(levels=["boundary"], priority=-5) as lease, pytest.raises(TimeoutError):
            lease.wait(2.5)


def test_a_recording_of_jobs_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    beside(tmp_path / "run.jsonl").mkdir()
    with pytest.raises(AssertionError, match=r"run\.jobs\.jsonl.*cannot be written"):
        ServerProcess(tmp_path, "--record", str(tmp_path / "run.jsonl")).start()


def test_what_a_killed_server_has_recorded_of_jobs_is_replayed_as_far_as_it_goes(tmp_path: Path) -> None:
    recording = tmp_path / "run.jsonl"
    with ServerProcess(
        tmp_path, "--device", "cpu", "--kernels", KERNELS, "--record", str(recording)
    ) as server:
        with job(server, tmp_path, STOPPED) as counting:
            counting.expect_running()
            server.kill()
            assert counting.line().startswith("ServerGone")
    with beside(recording).open() as lines:
        result = replay(lines)
    assert result.difference is None
    assert beside(recording).read_text().startswith(JOBS.write_header("switchflow"))


def _of_job(server: ServerProcess, key: str) -> int:
    (row,) = jobs(server).values()
    value: int = row[key]
    return value
