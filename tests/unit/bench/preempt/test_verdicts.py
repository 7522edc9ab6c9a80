"""Targets are judged against inference alone, training alone and the operating system's own way."""

from __future__ import annotations

import io
import json

from rich.console import Console

from polymux.bench.preempt.cell import Cell
from polymux.bench.preempt.figures import Figures
from polymux.bench.preempt.table import table
from polymux.bench.preempt.verdicts import alone, result, rows, train_alone_per_s

FOUND = {
    "train_alone": Figures(train_steps_per_s=9.0),
    "train_alone_defaults": Figures(train_steps_per_s=10.0),
    "alone_spinning": Figures(4.0, 8.0),
    "alone_sleeping": Figures(5.0, 10.0),
    "sched_idle": Figures(7.0, 12.0, 8.0, requests=1234),
}


def cell(polymux: Figures | None = None, others: float = 0.01) -> Cell:
    found = FOUND if polymux is None else {**FOUND, "polymux": polymux}
    return Cell("squeezenet", 0.15, 4.4, 34.0, 5.0, 3, 1, others, found)


def verdicts(polymux: Figures) -> list[bool | None]:
    return [row.met for row in rows(cell(polymux)) if row.target]


def test_a_cell_is_compared_with_the_best_of_both_ways_alone() -> None:
    assert alone(cell()) == "alone_spinning"
    assert train_alone_per_s(cell()) == 10.0


def test_everything_is_met_by_what_is_as_good_as_alone_and_leaves_the_load() -> None:
    assert verdicts(Figures(4.2, 9.1, 8.6, 0.4)) == [True] * 5


def test_each_target_is_missed_by_itself() -> None:
    assert verdicts(Figures(4.2, 9.3, 8.6, 0.4)) == [False, True, True, True, True]
    assert verdicts(Figures(4.2, 9.1, 8.4, 0.4)) == [True, False, True, True, True]
    assert verdicts(Figures(4.2, 12.3, 8.6, 0.4)) == [False, True, False, True, True]
    assert verdicts(Figures(4.2, 9.1, 7.8, 0.4)) == [True, False, True, False, True]
    assert verdicts(Figures(4.2, 9.1, 8.6, 1.0)) == [True, True, True, True, False]


def test_nothing_is_judged_by_rounds_that_others_disturbed() -> None:
    found = rows(cell(Figures(4.2, 9.3, 8.6, 0.4), others=0.06))
    assert len([row for row in found if row.target]) == 5
    assert all(row.met is None for row in found)


def test_without_polymux_nothing_is_judged() -> None:
    assert all(row.met is None for row in rows(cell()))


def test_the_result_has_the_keys_of_the_documentation() -> None:
    found = json.loads(json.dumps(result(cell(Figures(4.2, 9.1, 8.6, 0.4)))))
    assert found["load"] == 0.15
    assert found["train_alone_steps_per_s"] == 10.0
    assert found["configs"]["alone"] == {
        "p50_ms": 4.0,
        "p99_ms": 8.0,
        "requests": 0,
        "train_steps_per_s": None,
        "threads": "spinning",
    }
    assert found["configs"]["polymux"]["wait_p99_ms"] == 0.4
    assert "train_alone" not in found["configs"]


def test_the_table_has_a_line_for_each_configuration() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(table(cell(), "alone_spinning", 10.0))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["sched_idle", "7.0", "12.0", "1.50", "x", "80%", "1234"] in lines
    assert ["alone_spinning", "4.0", "8.0", "1.00", "x"] in lines
    assert ["train_alone_defaults", "10.00/s"] in lines
