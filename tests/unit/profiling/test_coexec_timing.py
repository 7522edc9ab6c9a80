"""Samples of a calibration: what was disturbed is repeated, and what else ran is noticed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from polymux.core.errors import InvalidRequest
from polymux.profiling.coexec import timing
from polymux.profiling.coexec.records import CalibrationOptions
from polymux.profiling.coexec.shapes import SHAPES, Conv, Gemm
from polymux.profiling.coexec.timing import Others, Timing, measure

MS = 1_000_000


class Silence:
    """`Others` of a machine on which nothing else runs."""

    def start(self) -> None:
        pass

    def cores(self) -> float | None:
        return self.used

    used: float | None = 0.0


def runner(times_ms: Iterator[float]) -> timing.Callable[[], int]:
    return lambda: round(next(times_ms) * MS)


def test_samples_of_a_quiet_machine_are_all_kept() -> None:
    found = measure(runner(iter([9, 5, *[5.0] * 20])), Silence(), repeats=4)
    assert found == Timing((0.005,) * 4, 0, 0.0)
    assert not found.is_busy


def test_what_took_much_longer_than_the_shortest_is_repeated() -> None:
    found = measure(runner(iter([5, 5, 5.1, 70, 5, 6.5, 5.2, 5.3, 5])), Silence(), repeats=4)
    assert found.seconds == (0.0051, 0.005, 0.0052, 0.0053)
    assert found.disturbed == 2


def test_slow_samples_from_before_a_machine_was_quiet_are_given_up() -> None:
    found = measure(runner(iter([9, 9, 9, 9, 5, 5, 5])), Silence(), repeats=3)
    assert found.seconds == (0.005,) * 3
    assert found.disturbed == 2


def test_a_machine_that_is_never_quiet_ends_it_and_is_called_busy() -> None:
    found = measure(
        runner(iter([5, 5, *(5 * 1.2**power for power in range(30, 0, -1))])), Silence(), repeats=4
    )
    assert found.is_busy


def test_a_process_beside_it_makes_a_measurement_doubtful() -> None:
    beside = Silence()
    beside.used = 0.5
    assert measure(runner(iter([5.0] * 9)), beside, repeats=3).is_busy


def test_a_sample_of_short_things_is_the_median_of_many_each_done_by_itself() -> None:
    times_ns = iter([100_000, 100_000, *[90_000, 100_000, 5 * MS, 110_000] * 20])
    found = measure(lambda: next(times_ns), Silence(), repeats=3)
    assert len(list(times_ns)) == 82 - 2 - 3 * 20
    assert found == Timing((105e-6,) * 3, 0, 0.0)


def test_the_time_of_others_is_what_is_not_that_of_the_given_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    machine, own = [1000], [300]
    now = [0.0]
    (tmp_path / "77").mkdir()

    def read(path: Path) -> str:
        if path.name == "stat" and path.parent.name == "proc":
            return f"cpu  {machine[0]} 0 0 50000 60 0 0 0 0 0\ncpu0 1 2 3\n"
        assert path == Path("/proc/77/stat")
        return f"77 (a (b) c) S 1 1 1 0 -1 4194304 5 0 0 0 {own[0]} 0 0 0 20 0 4 0 100"

    monkeypatch.setattr(timing.Path, "read_text", read)
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    others = Others([77])
    machine[0], own[0], now[0] = 1000 + 3 * tick, 300 + tick, 4.0
    assert others.cores() == pytest.approx(0.5)
    now[0] = 0.05
    assert others.cores() is None


def test_a_process_that_is_gone_leaves_the_question_open() -> None:
    assert Others([2**22 + 1]).cores() is None


def test_shapes_say_their_work_and_fit_a_model() -> None:
    assert Gemm(2, 3, 4).features.work == 48
    layer = Conv(2, 3, 9, 5, 3, 2)
    assert layer.output == (2, 5, 5, 5)
    assert layer.features.work == 2 * 2 * 5 * 25 * 3 * 9
    for shapes in SHAPES.values():
        assert 40 <= len(set(shapes)) == len(shapes) <= 60


@pytest.mark.parametrize(
    "wrong",
    [{"operations": ("fft",)}, {"dtype": "i4"}, {"device_s": 0}, {"repeats": 1}, {"device_s": float("nan")}],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=str(next(iter(wrong.values()))).strip("()',")[:3]):
        CalibrationOptions(**wrong)  # type: ignore[arg-type]
