"""Training jobs that share a device have its time by weight, and each gets on as fast as its part of it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

from tests.segment.job_program import Counter
from tests.segment.server_process import ServerProcess, until
from tests.training.processes import Trainer

SECOND_NS = 1_000_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    folder = tmp_path / "server"
    folder.mkdir()
    with ServerProcess(folder, "--device", "cpu") as made:
        yield made


def test_two_training_jobs_share_a_device_by_weight(server: ServerProcess, tmp_path: Path) -> None:
    counters = [Counter(tmp_path / name) for name in ("light", "heavy")]

    def trainer(name: str, weight: str) -> Trainer:
        words = ("--socket", str(server.socket), "--counter", str(tmp_path / name), "--epochs", "100000")
        return Trainer(tmp_path / f"{name}.pt", *words, "--weight", weight)

    def held_ns() -> list[int]:
        rows = sorted(server.status()["jobs"], key=lambda row: row["weight"])
        return [row["held_ns"] for row in rows]

    with trainer("light", "1"), trainer("heavy", "3"):
        until(lambda: all(counter.value for counter in counters), 100)
        began, steps = held_ns(), [counter.value for counter in counters]
        until(lambda: sum(held_ns()) > sum(began) + 8 * SECOND_NS, 100)
        time = [now - before for now, before in zip(held_ns(), began, strict=True)]
        done = [counter.value - before for counter, before in zip(counters, steps, strict=True)]
    assert time[1] / sum(time) == pytest.approx(0.75, abs=0.15)
    assert done[1] > done[0], (
        "how many steps a second of the device makes is the machine's: others compute as well"
    )


def test_a_job_that_runs_out_of_memory_in_a_step_keeps_its_last_one_and_the_other_goes_on(
    server: ServerProcess, tmp_path: Path
) -> None:
    words = ("--socket", str(server.socket))
    counter = Counter(tmp_path / "other")
    with Trainer(tmp_path / "other.pt", *words, "--counter", str(tmp_path / "other"), "--epochs", "100000"):
        until(lambda: counter.value > 0, 100)
        with Trainer(tmp_path / "run.pt", *words, "--exhaust", "5") as failing:
            failing.until("step 4")
            assert failing.end() == 1
        assert "allocate" in failing.said()
        assert "out of memory; the last boundary, step 4, is in" in failing.said()
        assert "smaller batches" in failing.said()
        until(lambda: [row["state"] for row in server.status()["jobs"]] == ["runs"], 60)
        before = counter.value
        until(lambda: counter.value > before, 60)
    with Trainer(tmp_path / "run.pt", *words) as again:
        assert again.until("begins after") == "begins after 4"
        again.until("digest")
