"""Training processes under leases of a real server."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

from tests.segment.server_process import ServerProcess, until
from tests.training.processes import Trainer, plain_digest

SLOWLY = ("--pause", "0.05")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    folder = tmp_path / "server"
    folder.mkdir()
    with ServerProcess(folder, "--device", "cpu") as made:
        yield made


def test_two_jobs_on_one_device_compute_the_same_bits_as_without_polymux(
    server: ServerProcess, tmp_path: Path
) -> None:
    socket = ("--socket", str(server.socket))
    with (
        Trainer(tmp_path / "low.pt", *socket, *SLOWLY) as low,
        Trainer(tmp_path / "high.pt", *socket, "--priority", "3") as high,
    ):
        assert low.until("step").endswith("cpu:0")
        assert high.until("digest") == plain_digest()
        assert low.until("digest") == plain_digest()
        assert (low.end(), high.end()) == (0, 0)


def test_a_job_gives_way_to_one_of_higher_priority_and_ends_while_it_waits(
    server: ServerProcess, tmp_path: Path
) -> None:
    socket = ("--socket", str(server.socket), "--levels", "boundary")
    with Trainer(tmp_path / "low.pt", *socket, *SLOWLY, "--epochs", "1000") as low:
        low.until("step 2")
        with Trainer(tmp_path / "high.pt", *socket, *SLOWLY, "--priority", "3", "--epochs", "1000") as high:
            high.until("step 3")
            low.process.send_signal(signal.SIGTERM)
            assert low.end() == 128 + signal.SIGTERM, low.said()
            high.until("step 6")
    assert (tmp_path / "low.pt").exists()


def test_a_job_waits_for_a_server_that_comes_goes_and_comes_back(
    server: ServerProcess, tmp_path: Path
) -> None:
    server.stop()
    with Trainer(tmp_path / "run.pt", "--socket", str(server.socket), *SLOWLY) as trainer:
        until(lambda: "waiting for one" in trainer.said(), 60)
        server.start()
        trainer.until("step 3")
        server.kill()
        until(lambda: "waiting for the server to come back" in trainer.said(), 60)
        server.start()
        assert trainer.until("digest") == plain_digest()
        assert trainer.end() == 0


def test_a_job_that_may_goes_on_alone_when_the_server_is_killed(
    server: ServerProcess, tmp_path: Path
) -> None:
    with Trainer(tmp_path / "run.pt", "--socket", str(server.socket), "--alone", *SLOWLY) as trainer:
        trainer.until("step 3")
        server.kill()
        assert trainer.until("digest") == plain_digest()
        assert "going on alone" in trainer.said()
        assert trainer.end() == 0
