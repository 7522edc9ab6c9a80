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
from polymux.server.jobs.background import Background, Way, shares_group
from polymux.server.jobs.process import JobProcess, can_idle, find_process
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


def test_a_process_of_the_same_session_is_in_the_same_group(program: subprocess.Popen[str]) -> None:
    assert shares_group(program.pid)


def test_a_job_in_the_background_is_put_back_as_it_was() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WITH_CHILD], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            before = [where(pid) for pid in (process.pid, child)]
            job = JobProcess(process.pid, group=True, background=True)
            assert not job.in_background
            job.enter_background(can_idle())
            if job.background is not None:
                assert job.in_background in ("control group", "session")
                assert job.may_idle
                assert all(is_last(pid) for pid in (process.pid, child))
            job.make_idle()
            job.go_on()
            if job.background is not None:
                assert all(is_last(pid) for pid in (process.pid, child)), "it stays in the background"
            entered = job.background
            job.close()
            assert job.leave_background(5.0)
            assert [where(pid) for pid in (process.pid, child)] == before
            assert entered is None or not Path(entered.path, "cpu.idle").exists()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_job_that_is_in_the_background_by_its_threads_is_put_back(program: subprocess.Popen[str]) -> None:
    job = JobProcess(program.pid, group=True, background=True)
    job.ways = ()  # as where others are in its session, and no control group can be made
    job.enter_background(can_idle())
    assert job.in_background == ("threads" if can_idle() else "")
    assert os.sched_getscheduler(program.pid) == (os.SCHED_IDLE if can_idle() else os.SCHED_OTHER)
    job.close()
    assert os.sched_getscheduler(program.pid) == os.SCHED_OTHER


def test_a_way_that_the_kernel_refuses_is_followed_by_the_next_and_promises_nothing(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    job = JobProcess(program.pid, group=True, background=True)
    refused = Background(Way.MADE, str(tmp_path / "none" / "deeper"))
    (tmp_path / "cpu.idle").write_text("0")
    taken = Background(Way.OWN, str(tmp_path))
    told: list[Background | None] = []
    job.ways, job._shares = (refused, taken), False
    job.enter_background(False, lambda process: told.append(process.background))
    assert (job.background, told) == (taken, [refused, taken])
    assert job.leave_background()
    assert job.background == taken, "the guard is told what may be left of it"
    (tmp_path / "cpu.idle").write_text("7")
    assert job.leave_background()
    assert (tmp_path / "cpu.idle").read_text() == "7", "once is enough"
    job.ways = (refused,)
    job.enter_background(False, lambda process: told.append(process.background))
    assert (job.background, job.in_background, job.may_idle) == (None, "", False)
    assert told[2:] == [refused, None], (
        "the guard hears of it before it is tried, and that it came to nothing"
    )
    job.close()


def test_a_job_that_comes_first_is_not_put_into_the_background(program: subprocess.Popen[str]) -> None:
    job = JobProcess(program.pid, group=True)
    before = where(program.pid)
    job.enter_background(can_idle())
    assert not job.in_background
    assert where(program.pid) == before
    job.close()


def where(pid: int) -> tuple[str, str, int]:
    """In which groups a process is, and how the kernel schedules it."""
    texts = [Path(f"/proc/{pid}/{name}") for name in ("cgroup", "autogroup")]
    groups = [text.read_text() if text.exists() else "" for text in texts]
    return groups[0], groups[1], os.sched_getscheduler(pid)


def is_last(pid: int) -> bool:
    """Whether a control group of a process, or its session, comes after all others."""
    groups, session, _ = where(pid)
    return f"polymux-job-{os.getpgid(pid)}" in groups or session.endswith("nice 19\n")
