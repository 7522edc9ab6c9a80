"""The table of jobs of ``status`` and ``top``."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from polymux.cli.text import count, duration, percent, shorten, size, table

State = dict[str, Any]

_HOW = ("step", "boundary", "launches", "idle", "stop")


def jobs_table(state: State, before: State | None = None) -> Table | None:
    """List the jobs: device time, waiting, how often their device was taken back; None when there are none.

    Parameters
    ----------
    state, before : dict
        What the server tells now, and what it told before: then time is shown as a part of the time between.
    """
    if not state["jobs"]:
        return None
    more = ("held", "waited") if before is None else ("held/s", "waited/s")
    columns = (
        "job",
        "name",
        "state",
        "device",
        "priority",
        "weight",
        *more,
        "memory",
        "moves",
        "taken back",
        "gave way p99",
    )
    made = table("Jobs", columns, columns[4:])
    shorten(made, 1, 20)
    earlier = {} if before is None else {job["id"]: job for job in before["jobs"]}
    for job in state["jobs"]:
        made.add_row(
            job["id"],
            escape(job["name"]),
            job["state"],
            job["device"] or "-",
            str(job["priority"]),
            f"{job['weight'] / 100:g}",
            *(_time(state, before, job, earlier.get(job["id"]), key) for key in ("held_ns", "waited_ns")),
            size(job["resident_nbytes"]),
            count(job["moves"]),
            _taken_back(job["taken_back"]),
            duration(job["gave_way"]["p99_ns"]) if job["gave_way"]["count"] else "-",
        )
    return made


def task_waits_line(state: State) -> str | None:
    """Say on one line how long tasks waited for jobs to give way; None when none has."""
    told = [
        f"{device['id']} {count(waits['count'])} times, p50 {duration(waits['p50_ns'])},"
        f" p99 {duration(waits['p99_ns'])}"
        for device in state["devices"]
        if (waits := device["task_waits"])["count"]
    ]
    return f"tasks waited for jobs to give way: {'; '.join(told)}" if told else None


def jobs_memory_line(state: State) -> str | None:
    """Say on one line what memory jobs have of the devices, as they declared it; None when they declared none."""
    told = [
        f"{device['id']} {size(used['used_nbytes'])}, at most {size(used['most_nbytes'])}"
        + (f" of {size(device['memory_nbytes'])}" if device["memory_nbytes"] else "")
        for device in state["devices"]
        if (used := device["jobs_memory"])["most_nbytes"]
    ]
    return f"memory of jobs: {'; '.join(told)}" if told else None


def _time(state: State, before: State | None, job: State, then: State | None, key: str) -> str:
    if before is None:
        return duration(job[key])
    elapsed_ns = state["server"]["now_ns"] - before["server"]["now_ns"]
    return percent(max(0, job[key] - (then[key] if then is not None else 0)), elapsed_ns)


def _taken_back(counts: dict[str, int]) -> str:
    """Say how often, and how when that is not always the same."""
    told = [f"{count(counts[how])} {how}" for how in _HOW if counts.get(how)]
    return ", ".join(told) or "0"
