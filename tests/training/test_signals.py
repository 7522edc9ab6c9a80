"""A training process that is ended from outside: it writes itself down, and goes on with the same bits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

from polymux.training.checkpoint import read_checkpoint
from tests.segment.server_process import until
from tests.training.processes import Trainer, plain_digest

SLOWLY = ("--alone", "--pause", "0.05")


def test_a_job_that_is_ended_interrupted_and_killed_comes_to_the_same_bits_as_a_plain_loop(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.pt"
    with Trainer(path, *SLOWLY) as trainer:
        trainer.until("step 3")
        trainer.process.send_signal(signal.SIGTERM)
        assert trainer.end() == 128 + signal.SIGTERM, trainer.said()
        assert f"is in {path}" in trainer.said()
    found = read_checkpoint(path)
    assert found is not None
    assert found["steps"] >= 2
    with Trainer(path, *SLOWLY) as trainer:
        assert trainer.until("begins after") == f"begins after {found['steps']}"
        trainer.until("step")
        trainer.process.send_signal(signal.SIGINT)
        assert trainer.end() != 0
        assert "KeyboardInterrupt" in trainer.said()
    before = path.read_bytes()
    again = read_checkpoint(path)
    assert again is not None
    assert again["steps"] > found["steps"]
    with Trainer(path, *SLOWLY) as trainer:
        trainer.until("step")
        trainer.process.kill()
    assert path.read_bytes() == before
    with Trainer(path, "--alone") as trainer:
        assert trainer.until("digest") == plain_digest()
        assert trainer.end() == 0


def test_sigterm_ends_a_job_that_waits_for_a_server(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    with Trainer(path, "--socket", str(tmp_path / "nowhere.sock")) as trainer:
        until(lambda: "waiting for one" in trainer.said(), 60)
        trainer.process.send_signal(signal.SIGTERM)
        assert trainer.end() == 128 + signal.SIGTERM, trainer.said()
    assert path.exists()
