"""What others took of the cores is told apart from what the benchmark's own processes took."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymux.bench.preempt.machine import _TICK_S, Machine, Usage

SECOND = round(1 / _TICK_S)


def write(proc: Path, *, busy: int, stolen: int, own: int) -> None:
    idle = 100 * SECOND
    lines = [
        "cpu  1 1 1 1 1 1 1 1 0 0",
        f"cpu0 {busy} 0 0 {idle} 7 0 0 {stolen} {busy} 0",
        "cpu1 5 0 0 9 0 0 0 0 0 0",
    ]
    (proc / "stat").write_text("\n".join([*lines, "cpu10 9999 9999 9999 0 0 0 0 0 0 0", "ctxt 5"]) + "\n")
    (proc / "7").mkdir(exist_ok=True)
    (proc / "7" / "stat").write_text(f"7 (a ) b) S 1 1 1 0 -1 0 0 0 0 0 {own} 2 3 4 20 0 1 0 99\n")


def test_time_of_the_watched_cores_and_of_the_own_processes_is_read(tmp_path: Path) -> None:
    write(tmp_path, busy=SECOND, stolen=SECOND // 2, own=SECOND)
    usage = Machine([0], tmp_path).usage([7])
    assert usage.busy_s == pytest.approx(1.5), "guest time is a part of user time, waiting for a disk is idle"
    assert usage.own_s == pytest.approx(1 + 2 * _TICK_S), "children that have ended are not counted twice"


def test_a_process_that_has_ended_counts_nothing(tmp_path: Path) -> None:
    write(tmp_path, busy=SECOND, stolen=0, own=0)
    assert Machine([0], tmp_path).usage([8]).own_s == 0.0


@pytest.mark.parametrize(
    ("busy_s", "own_s", "others"),
    [(4.0, 4.0, 0.0), (4.0, 3.0, 0.25), (4.0, 0.0, 1.0), (3.0, 3.5, 0.0)],
)
def test_what_others_took_is_a_part_of_all_watched_cores(busy_s: float, own_s: float, others: float) -> None:
    machine = Machine([0, 1])
    before, after = Usage(10.0, 50.0, 20.0), Usage(12.0, 50.0 + busy_s, 20.0 + own_s)
    assert machine.others(before, after) == pytest.approx(others)
