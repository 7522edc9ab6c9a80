"""The table of jobs, from what a server would tell."""

from __future__ import annotations

import copy
from typing import Any

from polymux.cli.job_tables import jobs_memory_line, jobs_table, task_waits_line
from polymux.cli.top import frame
from tests.unit.cli.test_tables import STATE, row, shown

JOB: dict[str, Any] = {
    "id": "job1",
    "name": "[bold]train.py",
    "state": "stopped",
    "device": None,
    "priority": -1,
    "weight": 50,
    "held_ns": 3_000_000_000,
    "waited_ns": 500_000_000,
    "resident_nbytes": 512 << 20,
    "moves": 0,
    "taken_back": {"stop": 12, "boundary": 3},
    "gave_way": {"count": 15, "total_ns": 0, "p50_ns": 90_000, "p99_ns": 400_000, "longest_ns": 500_000},
}


def with_job(**changes: Any) -> dict[str, Any]:
    state = copy.deepcopy(STATE)
    state["jobs"] = [JOB | changes]
    return state


def test_without_jobs_there_is_no_table() -> None:
    assert jobs_table(STATE) is None
    assert task_waits_line(STATE) is None
    assert "Jobs" not in shown(frame(STATE, None, 120))


def test_a_job_is_shown_with_its_times_and_how_it_was_made_to_give_way() -> None:
    text = shown(jobs_table(with_job()))
    words = row(text, "job1")
    assert words[:2] == ["[bold]train.py", "stopped"]
    assert " ".join(words[2:]) == "- -1 0.5 3.0 s 500.0 ms 512 MiB 0 3 boundary, 12 stop 400.0 us"


def test_with_two_looks_the_times_are_parts_of_the_time_between() -> None:
    before = with_job()
    now = with_job(held_ns=3_500_000_000, waited_ns=500_000_000)
    now["server"]["now_ns"] += 1_000_000_000
    words = row(shown(jobs_table(now, before)), "job1")
    assert "50%" in words
    assert "0%" in words
    assert "job1" in shown(frame(now, before, 120))


def test_how_long_tasks_waited_is_told_on_one_line() -> None:
    state = copy.deepcopy(STATE)
    state["devices"][0]["task_waits"] |= {"count": 1200, "p50_ns": 100_000, "p99_ns": 700_000}
    assert task_waits_line(state) == (
        "tasks waited for jobs to give way: opencl:0 1,200 times, p50 100.0 us, p99 700.0 us"
    )


def test_what_memory_jobs_have_is_told_on_one_line() -> None:
    assert jobs_memory_line(STATE) is None
    state = copy.deepcopy(STATE)
    state["devices"][0] |= {
        "jobs_memory": {"used_nbytes": 1 << 30, "most_nbytes": 3 << 30},
        "memory_nbytes": 4 << 30,
    }
    assert jobs_memory_line(state) == "memory of jobs: opencl:0 1.0 GiB, at most 3.0 GiB of 4.0 GiB"
