"""``polymux bench preempt`` in small: its processes, and all of it where PyTorch is. Nothing here judges a time."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from polymux.bench.preempt import benchmark, trainer
from polymux.bench.preempt.cell import Size, opened
from polymux.bench.preempt.configurations import ALONE, CONFIGURATIONS, TRAIN_ALONE, Configuration
from polymux.bench.preempt.gate import make_gate
from polymux.bench.preempt.worker import Worker
from polymux.core.errors import PolymuxError

MODEL = "turn_text"
SMALL = Size((MODEL,), (0.15,), 5, (0.2, 0.3), (1, 1), budget_s=60.0)


def test_inference_alone_is_measured_with_every_way_of_waiting_and_through_a_server(tmp_path: Path) -> None:
    make_gate(tmp_path)
    with opened(MODEL, tmp_path, (0,), {}) as bench:
        assert bench.service_ns() > 0
        for threads in ("defaults", "spinning", "sleeping", "running", "server"):
            way = Configuration("alone", threads, None)
            turn, others = bench.measure(way, [0, 1000, 2_000_000], 0.01)
            assert len(turn.latencies_ns) == 3
            assert min(turn.latencies_ns) > 0
            assert turn.train_steps_per_s is None
            assert 0 <= others <= 1


def test_a_process_that_fails_is_reported_with_its_words(tmp_path: Path) -> None:
    arguments = {"model": MODEL, "path": str(tmp_path / "none.onnx"), "cores": 1, "gate": str(tmp_path)}
    with (
        pytest.raises(PolymuxError, match=r"inference process has ended: (?s:.*)none\.onnx"),
        Worker("inference", "polymux.bench.preempt.inference", arguments) as worker,
    ):
        worker.wait_until_ready()


def test_a_process_that_does_not_answer_is_reported_and_ended() -> None:
    with (
        pytest.raises(PolymuxError, match=r"sleeping process did not answer within 0\.01 s"),
        Worker("sleeping", "tests.segment.test_preempt_benchmark", {}) as worker,
    ):
        worker.wait_until_ready()
        worker.ask(0.01, do="anything")
    assert not Path(f"/proc/{worker.pid}").exists()


def test_without_pytorch_the_benchmark_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "find_spec", lambda _name: None)
    with pytest.raises(PolymuxError, match=r"pip install 'polymux\[train\]'"):
        benchmark.measure(SMALL, lambda _what: None)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    find_spec("torch") is None, reason="PyTorch is not installed: pip install 'polymux[train]'"
)
def test_every_configuration_has_its_figures_next_to_a_real_training_loop() -> None:
    told: list[str] = []
    report = benchmark.measure(SMALL, told.append)
    (found,) = json.loads(json.dumps(report.results))
    assert found["load"] == 0.15
    assert found["train_alone_steps_per_s"] > 0
    names = {way.name for way in CONFIGURATIONS} - {*TRAIN_ALONE} | {"alone"}
    assert found["configs"].keys() == names
    for name, figures in found["configs"].items():
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
        trains = name not in ("alone", *ALONE)
        assert (figures["train_steps_per_s"] is not None) is trains
        assert ("wait_p99_ms" in figures) is (name in ("step", "subgraph", "polymux"))
    assert any("sched_idle" in what for what in told)


if __name__ == "__main__":  # a worker that is ready and never answers
    print("{}", flush=True)
    sys.stdin.read()
