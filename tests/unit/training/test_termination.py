"""SIGTERM in the job's own process: who handles it, and who does not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

from polymux.training.checkpoint import read_checkpoint
from tests.unit.training.loops import Fake, Loop, no_server


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("asked", [1, 2, 9, 30])
def test_sigterm_while_the_job_waits_for_its_turn_ends_it_with_the_state_of_the_last_step(
    asked: int, tmp_path: Path
) -> None:
    lease, loop, path = Fake(), Loop(), tmp_path / "run.pt"
    told = []

    def wait() -> None:
        told.append(job.steps)
        if lease.asked == asked:
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("the signal did not end the wait")

    lease.on_check = wait
    with pytest.raises(SystemExit) as raised, loop.job(lambda: lease, checkpoint=path) as job:
        loop.under(job, 2)
    assert raised.value.code == 128 + signal.SIGTERM
    found = read_checkpoint(path)
    assert found is not None
    assert found["steps"] == told[-1]


def test_sigterm_while_nobody_wants_the_device_ends_the_job_at_its_next_boundary(tmp_path: Path) -> None:
    loop, path = Loop(), tmp_path / "run.pt"
    with pytest.raises(SystemExit), loop.job(Fake, checkpoint=path) as job:
        for _ in job.epochs(1):
            for batch in job.batches(loop.loader):
                if job.steps == 2:
                    signal.raise_signal(signal.SIGTERM)
                loop.learn(batch)
    found = read_checkpoint(path)
    assert found is not None
    assert found["steps"] == len(loop.losses) == 2


def test_sigterm_while_an_optimizer_runs_lets_the_step_end(tmp_path: Path) -> None:
    loop, path = Loop(), tmp_path / "run.pt"
    with pytest.raises(SystemExit), loop.job(Fake, checkpoint=path) as job:
        loop.optimizer.register_step_pre_hook(lambda *_: signal.raise_signal(signal.SIGTERM))
        loop.under(job, 1)
    found = read_checkpoint(path)
    assert found is not None
    assert found["steps"] == len(loop.losses) == 1


def test_a_job_without_a_checkpoint_file_leaves_the_signal_alone() -> None:
    loop = Loop()
    with loop.job(Fake):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_programs_own_has_the_last_word(tmp_path: Path) -> None:
    def mine(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(7)

    signal.signal(signal.SIGTERM, mine)
    loop = Loop()
    with pytest.raises(SystemExit) as raised, loop.job(Fake, checkpoint=tmp_path / "run.pt") as job:
        signal.raise_signal(signal.SIGTERM)
        loop.under(job, 1)
    assert raised.value.code == 7
    assert (tmp_path / "run.pt").exists()
    assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is mine


def test_processes_that_the_loop_forks_are_not_the_job(tmp_path: Path) -> None:
    loop, lease = Loop(), Fake()
    with loop.job(lambda: lease, checkpoint=tmp_path / "run.pt") as job:
        loop.under(job, 1)
        lease.gate[0] = 1
        child = os.fork()
        if child == 0:
            loop.evaluate()  # asks nobody
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(lease.asked)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGTERM


def test_a_job_that_goes_on_alone_ends_by_sigterm_too(tmp_path: Path) -> None:
    loop, path = Loop(), tmp_path / "run.pt"
    with pytest.raises(SystemExit), loop.job(no_server, alone=True, checkpoint=path) as job:
        signal.raise_signal(signal.SIGTERM)
        loop.under(job, 1)
    assert path.exists()
