"""Jobs in processes of their own and tasks take turns on a device, and no fault of either leaves it behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymux.client import Client
from polymux.core.errors import Closed, InvalidRequest, ServerGone
from polymux.server.jobs.process import can_idle
from tests.segment.job_program import Counter
from tests.segment.server_process import ServerProcess, until

HERE = Path(__file__).parent
BY_ITSELF = "step,boundary"
STOPPED = "boundary,stop"
_tasks: list[Any] = []


class Job:
    """A job program and what it prints."""

    def __init__(self, server: ServerProcess, folder: Path, levels: str, mode: str = "") -> None:
        path = folder / f"counter-{time.monotonic_ns()}"
        self.counter = Counter(path)
        words = [sys.executable, str(HERE / "job_program.py"), str(server.socket), str(path), levels, mode]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, process_group=0)

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def expect_running(self) -> None:
        before = self.counter.value
        until(lambda: self.counter.value > before, 30)


@contextlib.contextmanager
def job(
    server: ServerProcess, folder: Path, levels: str, mode: str = "", ready: bool = True
) -> Iterator[Job]:
    made = Job(server, folder, levels, mode)
    try:
        if ready:
            assert made.line().startswith("ready")
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(made.process.pid, signal.SIGKILL)
        made.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    kernels = str(HERE / "kernels_of_operator.py")
    with ServerProcess(tmp_path, "--device", "cpu", "--kernels", kernels) as made:
        yield made


def in_group_of_this_process(pid: int) -> bool:
    """Whether a process is as this one started it: in its control group, its session and its scheduling class."""
    groups = [
        [Path(f"/proc/{who}/{name}").read_text() for name in ("cgroup", "autogroup")] for who in (pid, "self")
    ]
    return groups[0] == groups[1] and os.sched_getscheduler(pid) == os.sched_getscheduler(0)


def jobs(server: ServerProcess) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in server.status()["jobs"]}


def sleep(client: Client, seconds: float) -> Any:
    """Have a task sleep; it is kept, since a queue that nobody has any more drops its tasks."""
    queue = client.queue()
    _tasks.append(queue.submit("sleep", [queue.zeros(1, "f4")], [queue.zeros(1, "f4")], seconds=seconds))
    return _tasks[-1]


@pytest.mark.parametrize("levels", [BY_ITSELF, STOPPED, "boundary,idle,stop", "step"])
def test_tasks_run_while_there_is_a_job_and_the_job_goes_on_afterwards(
    server: ServerProcess, tmp_path: Path, levels: str
) -> None:
    with job(server, tmp_path, levels, "steps") as counting, server.connect() as client:
        for _ in range(20):
            sleep(client, 0.001).wait(30)
        counting.expect_running()
        (row,) = jobs(server).values()
        assert sum(row["taken_back"].values()) >= 1
        until(lambda: jobs(server)[row["id"]]["state"] == "runs")
    until(lambda: jobs(server) == {})


def test_a_job_stands_still_while_a_task_runs(server: ServerProcess, tmp_path: Path) -> None:
    with job(server, tmp_path, STOPPED) as counting, server.connect() as client:
        task = sleep(client, 1.0)
        until(lambda: counting.state() == "T")
        before = counting.counter.value
        assert not task.done()
        assert counting.counter.value == before
        task.wait(30)
        counting.expect_running()


def test_two_jobs_have_the_device_in_turn(server: ServerProcess, tmp_path: Path) -> None:
    with job(server, tmp_path, BY_ITSELF) as first, job(server, tmp_path, BY_ITSELF) as second:
        for counting in (first, second, first, second):
            counting.expect_running()
        states = [row["state"] for row in jobs(server).values()]
        assert states.count("runs") + states.count("gives way") <= 1


def test_a_job_that_is_killed_in_its_lease_leaves_the_device_to_others(
    server: ServerProcess, tmp_path: Path
) -> None:
    with job(server, tmp_path, STOPPED) as first, job(server, tmp_path, BY_ITSELF, ready=False) as second:
        with server.connect() as client:
            task = sleep(client, 0.3)
            until(lambda: first.state() == "T" or task.done())
            first.process.kill()  # also where it is stopped
            task.wait(30)
        assert second.line().startswith("ready")
        second.expect_running()
        until(lambda: len(jobs(server)) == 1)


def test_a_job_that_a_debugger_has_stopped_keeps_nobody_from_the_device(
    server: ServerProcess, tmp_path: Path
) -> None:
    with job(server, tmp_path, STOPPED) as counting, server.connect() as client:
        counting.process.send_signal(signal.SIGSTOP)
        until(lambda: counting.state() == "T")
        sleep(client, 0.01).wait(30)
        assert counting.state() == "T", "it is the debugger's to continue"
        counting.process.send_signal(signal.SIGCONT)
        counting.expect_running()


def test_a_stuck_job_is_stopped_for_another_job(server: ServerProcess, tmp_path: Path) -> None:
    with job(server, tmp_path, STOPPED, "stuck") as stuck, server.connect() as client:
        with client.lease(levels=["boundary"], priority=1) as lease:
            lease.wait(30)
            until(lambda: stuck.state() == "T")
        stuck.expect_running()


def test_a_job_goes_on_when_the_server_is_killed_while_it_is_stopped(
    server: ServerProcess, tmp_path: Path
) -> None:
    with job(server, tmp_path, STOPPED) as counting, server.connect() as client:
        sleep(client, 60)
        until(lambda: counting.state() == "T")
        (row,) = jobs(server).values()
        assert row["background"] or not can_idle()
        server.kill()
        assert counting.line().startswith("ServerGone")
        counting.expect_running()
        until(lambda: in_group_of_this_process(counting.process.pid), 30)


@pytest.mark.parametrize("ends", ["job", "server", "both"])
def test_no_control_group_of_a_job_is_left(server: ServerProcess, tmp_path: Path, ends: str) -> None:
    with job(server, tmp_path, STOPPED) as counting:
        name = f"polymux-job-{counting.process.pid}"
        made = any(name in line for line in Path(f"/proc/{counting.process.pid}/cgroup").read_text().split())
        if ends != "server":
            counting.process.kill()
        if ends != "job":
            server.kill()
        if made:
            until(lambda: not any(Path("/sys/fs/cgroup").rglob(f"{name}-*")), 30)


def test_a_job_hears_of_the_end_of_the_server(server: ServerProcess, tmp_path: Path) -> None:
    with job(server, tmp_path, BY_ITSELF) as counting:
        server.stop()
        assert counting.line().startswith("ServerGone")
        counting.expect_running()


def test_a_guard_that_is_killed_is_replaced(server: ServerProcess, tmp_path: Path) -> None:
    def guards() -> list[int]:
        names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in server.children()}
        return [pid for pid, name in names.items() if name == "polymux-guard"]

    with job(server, tmp_path, STOPPED) as first:
        (guard,) = guards()
        os.kill(guard, signal.SIGKILL)
        with job(server, tmp_path, STOPPED, ready=False):
            until(lambda: guards() not in ([], [guard]))
        with server.connect() as client:
            sleep(client, 60)
            until(lambda: first.state() == "T")
            server.kill()
            assert first.line().startswith("ServerGone")


def test_a_lease_that_was_closed_says_so_and_can_be_had_again(server: ServerProcess) -> None:
    with server.connect() as client:
        with client.lease(levels=["boundary"]) as lease:
            assert lease.wait(30)
            assert not lease.check()
            assert (lease.device, lease.threads) == ("cpu:0", len(lease.cores))
            lease.idle()
            assert lease.step()
            lease.report(run_ns=5, boundary_ns=3)
        lease.close()
        for call in (lease.check, lease.step, lease.idle):
            with pytest.raises(Closed):
                call()
        with client.lease(levels=["boundary"]) as again:
            assert again.step()


def test_a_wait_may_have_an_end(server: ServerProcess, tmp_path: Path) -> None:
    with server.connect() as client, server.connect() as other:
        with (
            client.lease(levels=["boundary"], priority=1) as first,
            other.lease(levels=["boundary"]) as second,
        ):
            assert first.step()
            with pytest.raises(TimeoutError, match="waits for a device"):
                second.wait(0.05)
            first.idle()
            assert second.wait(30)


def test_what_cannot_be_is_refused_by_name(server: ServerProcess) -> None:
    with server.connect() as client:
        for options, complaint in (
            ({"levels": ["gently"]}, "gently.*step, boundary"),
            ({"device": "cuda:9"}, "cuda:9.*cpu:0"),
            ({"memory_nbytes": 2**59}, str(2**59)),
            ({"weight": 0}, "0.01 to 100"),
            ({"pid": 2**22 + 1}, "cannot be held"),
        ):
            with pytest.raises(InvalidRequest, match=complaint):
                client.lease(**options)  # type: ignore[arg-type]
        assert jobs(server) == {}
        leases = [client.lease(levels=["boundary"]) for _ in range(16)]
        with pytest.raises(InvalidRequest, match="16 leases"):
            client.lease(levels=["boundary"])
        leases[3].close()
        client.lease(levels=["boundary"])


def test_a_lease_of_a_server_that_is_gone_raises_everywhere(server: ServerProcess) -> None:
    client = server.connect()
    lease = client.lease(levels=["boundary"])
    assert lease.step()
    server.kill()
    until(lambda: bool(lease.gate[0]))
    for call in (lease.check, lease.step, lease.idle):
        with pytest.raises(ServerGone):
            call()
    lease.close()


def test_leases_leave_nothing_behind(server: ServerProcess, tmp_path: Path) -> None:
    def round_of_leases() -> None:
        with job(server, tmp_path, STOPPED), server.connect() as client:
            sleep(client, 0.001).wait(30)
        until(lambda: jobs(server) == {})

    round_of_leases()
    until(lambda: server.status()["applications"] == [])
    before = server.descriptors(), server.threads()
    for _ in range(4):
        round_of_leases()
    until(lambda: (server.descriptors(), server.threads()) <= before, 30)


def test_a_refused_lease_leaves_no_descriptor_and_no_background(server: ServerProcess) -> None:
    impossible: dict[str, Any] = {"levels": ["idle", "stop"], "memory_nbytes": 2**60}
    with server.connect() as client:
        with client.lease(levels=["boundary"], priority=-1):
            pass
        groups = Path("/proc/self/cgroup").read_text()

        def refused() -> None:
            with pytest.raises(InvalidRequest), client.lease(priority=-1, **impossible):
                pass

        refused()
        before = server.descriptors()
        for _ in range(10):
            refused()
        until(lambda: server.descriptors() <= before)
        assert Path("/proc/self/cgroup").read_text() == groups
