"""Checkpoint files, and going on from them: the same bits as without the interruption."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

import torch
from torch import nn

from polymux.core.errors import InvalidRequest
from polymux.training.checkpoint import BadCheckpoint, read_checkpoint, remove_leftovers, write_checkpoint
from polymux.training.random_state import random_state, set_random_state
from tests.unit.training.loops import Fake, Loop, Sequences, assert_same_bits, job_of


class Stop(Exception):
    pass


EPOCHS, STEPS = 2, 6


@pytest.mark.parametrize("stop_after", range(STEPS + 1))
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_run_that_is_written_down_after_any_step_goes_on_with_the_same_bits(
    stop_after: int, tmp_path: Path
) -> None:
    whole = Loop().plain(EPOCHS)
    path = tmp_path / "run.pt"
    first = Loop()
    with pytest.raises(Stop), first.job(Fake, checkpoint=path) as job:
        job.checkpoint()
        for _ in job.epochs(EPOCHS):
            for batch in job.batches(first.loader):
                if job.steps == stop_after:
                    job.checkpoint()
                    raise Stop
                first.learn(batch)
            if job.steps == STEPS == stop_after:
                job.checkpoint()
                raise Stop
            first.losses.append(first.evaluate())
            first.scheduler.step()
    second = Loop(seed=99)
    with second.job(Fake, checkpoint=path) as job:
        assert job.resumed
        assert job.steps == stop_after
        second.under(job, EPOCHS)
    assert first.losses + second.losses == whole.losses
    assert_same_bits(second, whole)


@pytest.mark.parametrize("boundary", range(0, 60, 7))
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_checkpoint_of_the_middle_of_a_step_is_that_of_its_beginning(boundary: int, tmp_path: Path) -> None:
    whole = Loop().plain(EPOCHS)
    path = tmp_path / "run.pt"
    first, lease = Loop(), Fake()

    def count() -> None:
        if lease.asked == boundary + 1:
            assert job._save("the test")
            raise Stop

    lease.on_check = count
    with pytest.raises(Stop), first.job(lambda: lease, checkpoint=path) as job:
        first.under(job, EPOCHS)
    second = Loop(seed=99)
    with second.job(Fake, checkpoint=path) as job:
        second.under(job, EPOCHS)
    assert first.losses + second.losses == whole.losses
    assert_same_bits(second, whole)


def test_a_finished_run_has_nothing_left_to_do_and_more_epochs_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    first, second, whole = Loop(), Loop(seed=99), Loop().plain(3)
    first = Loop()
    with first.job(Fake, checkpoint=path) as job:
        first.under(job, 2)
    with second.job(Fake, checkpoint=path) as job:
        second.under(job, 2)
        assert second.losses == []
    with second.job(Fake, checkpoint=path) as job:
        second.under(job, 3)
    assert first.losses + second.losses == whole.losses
    assert_same_bits(second, whole)


def test_a_file_is_left_alone_when_the_job_is_not_to_resume(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    for _ in range(2):
        loop = Loop()
        with loop.job(Fake, checkpoint=path, resume=False) as job:
            assert (job.resumed, job.steps) == (False, 0)
            loop.under(job, 1)


def test_gathered_gradients_are_not_cut_in_half(tmp_path: Path) -> None:
    loop = Loop()
    path = tmp_path / "run.pt"
    with loop.job(Fake, checkpoint=path) as job:
        for number, (images, labels) in enumerate([*loop.loader, *loop.loader]):
            nn.functional.cross_entropy(loop.model(images), labels).backward()
            if number % 2 == 1:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
            job.step()
            job.checkpoint()
            found = read_checkpoint(path)
            assert found is not None
            assert found["steps"] == (number + 1) // 2 * 2


def test_a_job_without_a_file_writes_one_on_demand(tmp_path: Path) -> None:
    loop = Loop()
    with loop.job(Fake) as job:
        loop.under(job, 1)
        with pytest.raises(InvalidRequest, match="no checkpoint file"):
            job.checkpoint()
        assert job.checkpoint(tmp_path / "here" / "run.pt") == tmp_path / "here" / "run.pt"
    other = Loop(seed=99)
    with other.job(Fake, checkpoint=tmp_path / "here" / "run.pt"):
        assert_same_bits(loop, other)


def test_a_checkpoint_is_written_when_its_time_has_come(tmp_path: Path) -> None:
    loop, path = Loop(), tmp_path / "run.pt"
    with loop.job(Fake, checkpoint=path, checkpoint_every_s=1e-9) as job:
        for _ in job.epochs(1):
            for batch in job.batches(loop.loader):
                loop.learn(batch)
                assert path.exists() == (job.steps > 0)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.pt"
    write_checkpoint(path, {"a": torch.ones(3)})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(path, {"a": torch.zeros(3)})
    assert os.listdir(tmp_path) == ["run.pt"]
    found = read_checkpoint(path)
    assert found is not None
    assert found["a"].tolist() == [1, 1, 1]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("there is no /dev/full")
    path = tmp_path / "run.pt"
    (tmp_path / f"run.pt.{os.getpid()}.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"run\.pt|No space left"):
        write_checkpoint(path, {"a": torch.zeros(1 << 20)})
    assert os.listdir(tmp_path) == []


def test_what_killed_processes_have_left_is_removed(tmp_path: Path) -> None:
    mine = tmp_path / f"run.pt.{os.getpid()}.partial"
    dead = tmp_path / f"run.pt.{2**22 + 1}.partial"
    other = tmp_path / f"other.pt.{2**22 + 1}.partial"
    for path in (mine, dead, other):
        path.touch()
    remove_leftovers(tmp_path / "run.pt")
    assert sorted(tmp_path.iterdir()) == sorted([mine, other])


@pytest.mark.parametrize("contents", [b"", b"no zip file", b"PK\x03\x04 and then nothing"])
def test_a_damaged_file_is_told(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    path.write_bytes(contents)
    with pytest.raises(BadCheckpoint, match=r"run\.pt: it is damaged or no PyTorch file"):
        read_checkpoint(path)


def test_a_file_that_is_cut_off_anywhere_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    loop = Loop()
    with loop.job(Fake) as job:
        job.checkpoint(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, len(whole) // 20):
        path.write_bytes(whole[:length])
        with pytest.raises(BadCheckpoint):
            read_checkpoint(path)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    torch.save({"format": 1, "code": os.system}, path)
    with pytest.raises(BadCheckpoint, match="damaged or no PyTorch file"):
        read_checkpoint(path)


@pytest.mark.parametrize("contents", [[1, 2], {"weights": 3}, {"format": 99}])
def test_a_pytorch_file_of_something_else_is_told(contents: object, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    torch.save(contents, path)
    with pytest.raises(BadCheckpoint, match=r"something else|format 99"):
        read_checkpoint(path)


def test_the_checkpoint_of_another_model_or_job_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    loop = Loop()
    with loop.job(Fake, checkpoint=path) as job:
        loop.under(job, 1)
    other = Loop(Sequences)
    with pytest.raises(BadCheckpoint, match="does not fit this job"):
        with other.job(Fake, checkpoint=path):
            pass
    with pytest.raises(BadCheckpoint, match="its `state` has"):
        with job_of(loop.model, loop.optimizer, Fake, checkpoint=path):
            pass
    with pytest.raises(BadCheckpoint, match="1 optimizers, the job has 2"):
        with job_of(loop.model, [loop.optimizer, loop.optimizer], Fake, checkpoint=path):
            pass


def test_the_generators_go_on_from_where_they_were_read() -> None:
    state = random_state()
    drawn = (
        torch.rand(3).tolist(),
        random.gauss(0, 1),
        random.random(),
        np.random.randn(),
        np.random.rand(2).tolist(),
    )
    set_random_state(state)
    again = (
        torch.rand(3).tolist(),
        random.gauss(0, 1),
        random.random(),
        np.random.randn(),
        np.random.rand(2).tolist(),
    )
    assert drawn == again


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, MemoryError])
def test_a_loop_that_breaks_off_after_a_step_has_done_that_step(
    error: type[BaseException] | None, tmp_path: Path
) -> None:
    whole = Loop().plain(EPOCHS)
    path = tmp_path / "run.pt"
    first = Loop()
    try:
        with first.job(Fake, checkpoint=path) as job:
            for _ in job.epochs(EPOCHS):
                for batch in job.batches(first.loader):
                    first.learn(batch)
                    if job.steps == 1:
                        if error is not None:
                            raise error
                        break
                break
    except (KeyboardInterrupt, MemoryError):
        pass
    second = Loop(seed=99)
    with second.job(Fake, checkpoint=path) as job:
        assert job.steps == 2
        second.under(job, EPOCHS)
    assert first.losses + second.losses == whole.losses
    assert_same_bits(second, whole)


@pytest.mark.parametrize("failure", [MemoryError(), RuntimeError("not enough memory"), OSError(28, "full")])
def test_a_checkpoint_that_fails_for_want_of_memory_does_not_hide_what_it_was_for(
    failure: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    loop, path = Loop(), tmp_path / "run.pt"
    monkeypatch.setattr("polymux.training.training_job.write_checkpoint", fail)
    with pytest.raises(MemoryError, match="of the loop"), loop.job(Fake, checkpoint=path):
        raise MemoryError("of the loop")
    assert "cannot be written" in caplog.text


def test_ctrl_c_in_the_middle_of_an_optimizer_leaves_the_file_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop, path = Loop(), tmp_path / "run.pt"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), loop.job(Fake, checkpoint=path) as job:
        loop.optimizer.register_step_pre_hook(interrupt)
        loop.under(job, 1)
    assert not path.exists()
    assert "while an optimizer was at work" in caplog.text


def test_a_checkpoint_on_demand_at_the_end_of_a_loops_body_is_of_that_step(tmp_path: Path) -> None:
    whole = Loop().plain(EPOCHS)
    path = tmp_path / "run.pt"
    first = Loop()
    with pytest.raises(Stop), first.job(Fake) as job:
        for _ in job.epochs(EPOCHS):
            for batch in job.batches(first.loader):
                first.learn(batch)
                job.checkpoint(path)
                if job.steps == 3:
                    raise Stop
            first.losses.append(first.evaluate())
            first.scheduler.step()
    second = Loop(seed=99)
    with second.job(Fake, checkpoint=path) as job:
        assert job.steps == 4
        second.under(job, EPOCHS)
    assert_same_bits(second, whole)


def test_with_several_optimizers_a_step_ends_with_the_last_one(tmp_path: Path) -> None:
    loop, path = Loop(), tmp_path / "run.pt"
    other = torch.optim.SGD(loop.model.last.parameters(), lr=0.1)
    with job_of(loop.model, [loop.optimizer, other], Fake, checkpoint=path) as job:
        for batch in loop.loader:
            loop.learn(batch)
            before = job.steps
            other.step()
            assert job.steps == before + 1
