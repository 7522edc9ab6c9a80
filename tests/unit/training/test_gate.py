"""The gate of a job, and the ways between boundaries that it measures."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make torch")

from polymux.training import gate as module
from polymux.training.gate import Gate


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr(module, "monotonic_ns", lambda: self.now)


def test_a_gate_asks_only_while_its_word_is_not_zero() -> None:
    asked = []
    gate = Gate(lambda: asked.append(1))
    gate.check()
    gate.word = [1]
    gate.check()
    gate.check()
    gate.word = [0]
    gate.check()
    assert len(asked) == 2


def test_the_longest_way_between_boundaries_is_that_of_the_step_that_was_disturbed_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    gate = Gate(lambda: None)
    gate.begin()
    assert (gate.boundary_ns, gate.step_ns) == (0, 0)
    for pause in (5000, 0, 300):  # the operating system has stopped the process for a while
        for way in (100, 700 + pause, 200):
            clock.now += way
            gate.check()
        gate.step()
    assert (gate.boundary_ns, gate.step_ns) == (700, 1000)


def test_waiting_at_the_gate_is_no_time_between_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def wait() -> None:
        clock.now += 1_000_000

    gate = Gate(wait)
    gate.begin()
    clock.now += 10
    gate.word = [1]
    gate.check()
    gate.word = [0]
    clock.now += 20
    gate.step()
    assert (gate.boundary_ns, gate.step_ns) == (20, 30)
