"""What the server does to the processes of jobs, with real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polymux.core.errors import InvalidRequest, PermissionDenied
from polymux.server.connection import Peer
from polymux.server.jobs.process import JobProcess, can_idle, find_process, idle_gives_way
from tests.segment.server_process import until

WAITING = "import threading; print(flush=True); threading.Event().wait()"
WITH_CHILD = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    " print(p.pid, flush=True); p.wait()"
)


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_is_stopped_and_goes_on(program: subprocess.Popen[str]) -> None:
    job = JobProcess(program.pid, group=False)
    job.stop()
    job.stop()
    until(lambda: state(program.pid) == "T")
    job.go_on()
    until(lambda: state(program.pid) != "T")
    job.close()
    job.close()


def test_what_is_given_up_goes_on(program: subprocess.Popen[str]) -> None:
    job = JobProcess(program.pid, group=True)
    job.stop()
    until(lambda: state(program.pid) == "T")
    job.close()
    until(lambda: state(program.pid) != "T")


def test_a_process_that_somebody_else_has_stopped_is_left_as_it_is(program: subprocess.Popen[str]) -> None:
    job = JobProcess(program.pid, group=False)
    program.send_signal(signal.SIGSTOP)
    until(lambda: state(program.pid) == "T")
    job.stop()
    job.go_on()
    assert state(program.pid) == "T"
    job.close()


def test_the_processes_of_a_group_are_stopped_together() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WITH_CHILD], stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            job = JobProcess(process.pid, group=True)
            job.stop()
            until(lambda: state(process.pid) == state(child) == "T")
            job.go_on()
            until(lambda: "T" not in (state(process.pid), state(child)))
            job.close()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.skipif(not can_idle(), reason="this user may not take a thread out of the idle class again")
def test_all_threads_of_a_group_run_on_idle_cores_only_and_then_as_before() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WITH_CHILD], stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            job = JobProcess(process.pid, group=True)
            job.make_idle()
            assert {os.sched_getscheduler(pid) for pid in (process.pid, child)} == {os.SCHED_IDLE}
            job.go_on()
            assert {os.sched_getscheduler(pid) for pid in (process.pid, child)} == {os.SCHED_OTHER}
            job.close()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_process_that_has_ended_can_be_held_without_an_error(program: subprocess.Popen[str]) -> None:
    job = JobProcess(program.pid, group=True)
    program.kill()
    program.wait()
    job.stop()
    job.make_idle()
    job.go_on()
    job.move((0,))
    job.close()
    with pytest.raises(InvalidRequest, match="cannot be held"):
        JobProcess(program.pid, group=True)


def test_the_process_of_somebody_else_is_refused() -> None:
    own = Path("/proc/self").stat().st_uid
    stranger = Peer(2**22 + 1, own + 4321, own + 4321)
    with pytest.raises(PermissionDenied, match=f"process {os.getppid()} is not one of user {own + 4321}"):
        find_process(os.getppid(), stranger)


def test_no_process_is_held_where_there_is_none_to_hold() -> None:
    peer = Peer(os.getpid(), os.getuid(), os.getgid())
    assert find_process(0, peer) is None
    assert find_process(os.getpid(), peer) is None, "the server's own"
    with pytest.raises(InvalidRequest, match="cannot be held"):
        find_process(2**22 + 1, peer)


def test_a_process_that_leads_its_group_is_held_with_the_group(program: subprocess.Popen[str]) -> None:
    peer = Peer(os.getpid(), os.getuid(), os.getgid())
    job = find_process(program.pid, peer)
    assert job is not None
    assert job.group
    job.close()


@pytest.mark.parametrize(
    ("autogroup", "cgroup", "gives_way"),
    [("0", "0::/same", True), ("1", "0::/same", False), ("0", "0::/other", False), (None, "0::/same", True)],
)
def test_the_idle_class_is_of_use_only_within_the_kernels_groups(
    autogroup: str | None, cgroup: str, gives_way: bool, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        for pid, group in ((os.getpid(), "0::/same"), (process.pid, cgroup)):
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "cgroup").write_text(group)
        if autogroup is not None:
            (tmp_path / "sys/kernel").mkdir(parents=True)
            (tmp_path / "sys/kernel/sched_autogroup_enabled").write_text(autogroup + "\n")
        assert idle_gives_way(process.pid, tmp_path) is gives_way
        process.kill()


def test_a_process_of_the_same_session_leaves_its_cores(program: subprocess.Popen[str]) -> None:
    assert idle_gives_way(program.pid)
