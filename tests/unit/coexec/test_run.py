"""What pieces took, as seen from an application that looks late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polymux.coexec import run as module
from polymux.coexec.run import Run, shared_out
from polymux.core.errors import DeviceUnavailable
from polymux.perfmodel.coexec.adapt import Chunk


def test_pieces_that_are_found_to_have_ended_together_share_the_time_as_predicted() -> None:
    assert shared_out(1000, 5000, [3000, 1000]) == [4000, 5000]
    assert shared_out(1000, 5000, [0]) == [5000]
    assert shared_out(0, 10, [0, 0]) == [5, 10], "a prediction of nothing divides evenly"


class Clock:
    """Time that goes on while somebody waits."""

    def __init__(self) -> None:
        self.now = 1_000

    def wait(self, _value: int, timeout_ns: int) -> bool:
        self.now += timeout_ns
        return False


class Task:
    """Of a device that does not answer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def done(self) -> bool:
        return False

    def want(self) -> None:
        pass

    def error(self, timeout: float) -> None:
        self._clock.now += int(timeout * 1e9)
        raise TimeoutError


class Work:
    """One piece for whoever asks first."""

    finished, handed_out = False, True

    def __init__(self) -> None:
        self._chunks = [Chunk(0, 7)]

    def take(self, _unit: str, _now: int) -> Chunk | None:
        return self._chunks.pop() if self._chunks else None


@pytest.mark.parametrize(("expected_s", "least_s"), [(0.001, 60), (4.0, 200)])
def test_a_device_that_never_answers_ends_in_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, expected_s: float, least_s: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "now_ns", lambda: clock.now)
    client: Any = SimpleNamespace(completion_value=lambda: 0, completion_wait=clock.wait, server_gone=False)
    dropped: list[bool] = []
    piece = SimpleNamespace(task=Task(clock), drop=lambda: dropped.append(True))
    call: Any = SimpleNamespace(
        submit=lambda *_: piece, way=SimpleNamespace(problem=SimpleNamespace(extent=9))
    )
    unit: Any = SimpleNamespace(id="cpu:0/0/gemm", place=SimpleNamespace(device="cpu:0", cores=frozenset()))
    work: Any = Work()
    run = Run(client, call, [(unit, None)], work, lambda _unit, _count: expected_s)  # type: ignore[list-item]
    with pytest.raises(DeviceUnavailable, match=r"cpu:0/0/gemm has not answered.* 7 of 9"):
        run.carry_out(others=True)
    assert clock.now >= least_s * 1e9
    assert "cpu:0/0/gemm" in run.failures, "it is left out for a while"
    assert not dropped, "its memory is kept until its task ends"
