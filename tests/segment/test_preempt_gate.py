"""Requests are answered in their order, and the cores are taken for them and given back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from polymux.bench.preempt import gate as gates
from polymux.bench.preempt.cell import arrivals
from polymux.bench.preempt.gate import InferenceSide, TrainingSide, make_gate
from polymux.bench.preempt.inference import WARM_REQUESTS, serve


class Training:
    """A thread that does nothing but reach boundaries; tells how often requests ran while it held the cores."""

    def __init__(self, folder: Path) -> None:
        self.holds = False
        self.waits = 0
        self._side = TrainingSide(folder)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Training:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._side.close()

    def _run(self) -> None:
        while not self._end.is_set():
            self.holds = True
            self.holds = False
            self._side.boundary()


def test_requests_are_answered_in_order_however_late_they_are() -> None:
    served = serve(lambda: None, [0, 10, 20], None)
    assert len(served.latencies_ns) == 3
    assert all(latency > 0 for latency in served.latencies_ns)
    assert served.waits_ns == []


def test_no_request_runs_while_training_holds_the_cores(tmp_path: Path) -> None:
    make_gate(tmp_path)
    side = InferenceSide(tmp_path)
    held: list[bool] = []
    with Training(tmp_path) as training:
        served = serve(lambda: held.append(training.holds), list(range(0, 50_000_000, 1_000_000)), side)
    side.close()
    assert len(held) == 50 + WARM_REQUESTS
    assert not any(held)
    assert not side.held
    assert 0 < len(served.waits_ns) <= 50


def test_requests_that_are_due_are_answered_before_training_goes_on(tmp_path: Path) -> None:
    make_gate(tmp_path)
    side = InferenceSide(tmp_path)
    with Training(tmp_path):
        served = serve(lambda: None, [0] * 20, side)
    side.close()
    assert len(served.latencies_ns) == 20
    assert len(served.waits_ns) == 1


def test_training_that_reaches_no_boundary_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "TIMEOUT_S", 0.01)
    make_gate(tmp_path)
    side = InferenceSide(tmp_path)
    with pytest.raises(TimeoutError, match="training reaches no boundary"):
        side.take()
    side.close()


def test_arrivals_are_the_same_for_a_seed_and_as_many_as_the_rate_says() -> None:
    times = arrivals(40.0, 5.0, (1, 2, 150))
    assert times == arrivals(40.0, 5.0, (1, 2, 150))
    assert times != arrivals(40.0, 5.0, (2, 2, 150))
    assert len(times) == 200
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 5_000_000_000
