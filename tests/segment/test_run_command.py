"""``polymux run``: an unchanged program waits, stands still and goes on as others need the device."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.segment.job_program import Counter
from tests.segment.server_process import ServerProcess, until
from tests.segment.test_leases import HERE, jobs, sleep

COUNT = str(HERE / "job_program.py")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    kernels = str(HERE / "kernels_of_operator.py")
    with ServerProcess(tmp_path, "--device", "cpu", "--kernels", kernels) as made:
        yield made


def words(server: ServerProcess, *program: str, options: tuple[str, ...] = ()) -> list[str]:
    command = [sys.executable, "-m", "polymux.cli", "run", "--socket", str(server.socket)]
    return [*command, *options, "--", *program]


def run(
    server: ServerProcess, *program: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(server, *program, options=options), capture_output=True, text=True, timeout=60, check=False
    )


class Counting:
    """A program that counts, under ``polymux run``."""

    def __init__(self, server: ServerProcess, folder: Path, *options: str) -> None:
        path = folder / f"counter-{time.monotonic_ns()}"
        self.counter = Counter(path)
        program = (sys.executable, COUNT, str(server.socket), str(path), "-", "alone")
        self.run = subprocess.Popen(
            words(server, *program, options=options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        assert self.run.stdout is not None
        _, self.lease, pid = self.run.stdout.readline().split()
        self.pid = int(pid)

    def state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def expect_running(self) -> None:
        before = self.counter.value
        until(lambda: self.counter.value > before, 30)


@contextlib.contextmanager
def counting(server: ServerProcess, folder: Path, *options: str) -> Iterator[Counting]:
    made = Counting(server, folder, *options)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(made.pid, signal.SIGKILL)
        made.run.kill()
        made.run.communicate()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_exit_code_and_the_output_are_the_programs(server: ServerProcess) -> None:
    ended = run(server, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "out\n", "err\n")
    assert run(server, "true").returncode == 0
    assert run(server, "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM
    until(lambda: jobs(server) == {})


def test_a_program_that_is_not_there_or_cannot_be_run_says_so(server: ServerProcess, tmp_path: Path) -> None:
    missing = run(server, "no-such-program")
    assert missing.returncode == 127
    assert "no-such-program: there is no such program" in missing.stderr
    garbage = tmp_path / "garbage"
    garbage.write_text("\0")
    garbage.chmod(0o755)
    broken = run(server, str(garbage))
    assert broken.returncode == 126
    assert "format" in broken.stderr.lower()


def test_without_a_server_nothing_is_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polymux.cli", "run", "--socket", str(tmp_path / "none"), "--"]
    ended = subprocess.run(
        [*command, "touch", str(tmp_path / "trace")], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "polymux up" in ended.stderr
    assert not (tmp_path / "trace").exists()


def test_a_program_stands_still_while_a_task_runs(server: ServerProcess, tmp_path: Path) -> None:
    with counting(server, tmp_path, "--priority", "-1", "--weight", "0.5", "--name", "slow") as program:
        row = jobs(server)[program.lease]
        assert (row["name"], row["priority"], row["weight"]) == ("slow", -1, 50)
        assert row["levels"] == ["idle", "stop"]
        with server.connect() as client:
            task = sleep(client, 1.0)
            until(lambda: program.state() == "T" or task.done())
            task.wait(30)
        program.expect_running()
        assert jobs(server)[program.lease]["taken_back"]


def test_two_programs_take_turns(server: ServerProcess, tmp_path: Path) -> None:
    with counting(server, tmp_path) as first, counting(server, tmp_path) as second:
        for program in (first, second, first, second):
            program.expect_running()


def test_a_program_is_told_signals(server: ServerProcess, tmp_path: Path) -> None:
    with counting(server, tmp_path) as program:
        program.run.send_signal(signal.SIGTERM)
        assert program.run.wait(30) == 128 + signal.SIGTERM
        until(lambda: gone(program.pid))


def test_a_program_does_not_outlive_the_command_without_a_lease(
    server: ServerProcess, tmp_path: Path
) -> None:
    with counting(server, tmp_path) as program, server.connect() as client:
        task = sleep(client, 0.5)
        until(lambda: program.state() == "T" or task.done())
        program.run.kill()
        until(lambda: gone(program.pid), 30)
        task.wait(30)


def test_a_program_goes_on_without_the_server_and_has_a_lease_again_when_it_is_back(
    server: ServerProcess, tmp_path: Path
) -> None:
    with counting(server, tmp_path) as program:
        with server.connect() as client:
            sleep(client, 60)
            until(lambda: program.state() == "T")
            server.kill()
        program.expect_running()
        server.start()
        until(lambda: bool(jobs(server)), 40)
        until(lambda: next(iter(jobs(server).values()))["state"] == "runs", 30)
        program.expect_running()
        program.run.send_signal(signal.SIGTERM)
        _, complaints = program.run.communicate(timeout=30)
        assert "the server is gone" in complaints
        assert "is back" in complaints


def test_a_finer_lease_inside_stands_for_that_of_the_command(server: ServerProcess, tmp_path: Path) -> None:
    inner = (
        "import polymux; c = polymux.connect(); l = c.lease(); l.step(); print(l.job, l.levels, flush=True)"
    )
    ended = subprocess.run(
        words(server, sys.executable, "-c", inner, options=("--priority", "3")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"POLYMUX_SOCKET": str(server.socket)},
    )
    assert ended.returncode == 0, ended.stderr
    assert "'step', 'boundary', 'idle', 'stop'" in ended.stdout


def test_a_command_in_a_command_needs_no_lease_of_its_own(server: ServerProcess) -> None:
    ended = run(server, *words(server, "echo", "done"))
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert "runs under the lease" in ended.stderr


def test_suspending_the_program_suspends_the_command_and_frees_the_device(
    server: ServerProcess, tmp_path: Path
) -> None:
    with counting(server, tmp_path) as program:
        os.kill(program.pid, signal.SIGTSTP)
        until(lambda: Path(f"/proc/{program.run.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        assert jobs(server)[program.lease]["state"] == "no work"
        assert program.state() == "T"
        program.run.send_signal(signal.SIGCONT)
        program.expect_running()
        assert jobs(server)[program.lease]["state"] == "runs"


def test_a_program_has_the_terminal(server: ServerProcess) -> None:
    read = "import sys; print('read', sys.stdin.readline().strip(), flush=True)"
    pid, terminal = pty.fork()
    if pid == 0:
        command = words(server, sys.executable, "-c", read)
        os.execv(command[0], command)
    os.write(terminal, b"hello\n")
    seen = b""
    with contextlib.suppress(OSError):  # the terminal ends with the program
        while b"read hello" not in seen:
            seen += os.read(terminal, 1024)
    assert b"read hello" in seen
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    os.close(terminal)
