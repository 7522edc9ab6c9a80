"""The tables of `status` and `top`, from what a server would tell."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import pytest
from rich.console import Console

from polymux.cli.tables import devices_table, energy_line, queues_table, sessions_table, streams_table
from polymux.cli.top import frame
from polymux.cli.usage import applications_usage, devices_usage

STATE: dict[str, Any] = {
    "server": {
        "version": "0.1.0",
        "pid": 7,
        "socket": "/run/p.sock",
        "policy": "round_robin",
        "uptime_ns": 10_000_000_000,
        "now_ns": 50_000_000_000,
        "grants": 0,
    },
    "devices": [
        {
            "id": "opencl:0",
            "api": "opencl",
            "name": "[weird] name",
            "memory": "own",
            "memory_nbytes": 1 << 30,
            "used_nbytes": 1 << 20,
            "units": 4,
            "lost": None,
            "copied_in_nbytes": 2048,
            "copied_out_nbytes": 0,
            "task_waits": {"count": 0, "total_ns": 0, "p50_ns": 0, "p99_ns": 0, "longest_ns": 0},
            "jobs_memory": {"used_nbytes": 0, "most_nbytes": 0},
            "streams": [
                {
                    "id": "opencl:0/0",
                    "units": [1, 2, 3],
                    "tasks": 100,
                    "busy_ns": 5_000_000_000,
                    "queues": {"1.0": {}},
                }
            ],
        }
    ],
    "energy": [],
    "absent": [],
    "accounts": [
        {
            "application": "[bold]app",
            "device": "opencl:0",
            "tasks": 100,
            "failed": 2,
            "busy_ns": 5_000_000_000,
            "waiting_ns": 200_000_000,
            "copied_in_nbytes": 3 << 20,
            "copied_out_nbytes": 1 << 20,
            "copied_between_nbytes": 0,
            "migrations": 4,
        },
        {
            "application": "ended long ago",
            "device": "opencl:0",
            "tasks": 7,
            "failed": 0,
            "busy_ns": 1,
            "waiting_ns": 0,
            "copied_in_nbytes": 0,
            "copied_out_nbytes": 0,
            "copied_between_nbytes": 0,
            "migrations": 0,
        },
    ],
    "applications": [
        {
            "session": 1,
            "name": "[bold]app[12]",
            "account": "[bold]app",
            "pid": 12,
            "uid": 1000,
            "queues": 1,
            "kernels": 0,
            "segment_nbytes": 1 << 30,
            "device_nbytes": 1024,
        }
    ],
    "queues": [
        {
            "id": "1.0",
            "name": "heat",
            "application": "[bold]app",
            "state": "bound",
            "stream": "opencl:0/0",
            "home": "cpu:0",
            "pinned": None,
            "pending": 3,
            "completed": 100,
            "migrations": 2,
            "busy_ns": 5_000_000_000,
            "waiting_ns": 150_000_000,
            "device_nbytes": 1024,
        }
    ],
    "jobs": [],
}


def shown(renderable: Any, width: int = 140) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(renderable)
    return output.getvalue()


def row(text: str, name: str) -> list[str]:
    """Words of the first line that begins with a name."""
    return next(line for line in text.splitlines() if line.startswith(name)).removeprefix(name).split()


def later(**queue: Any) -> dict[str, Any]:
    state = copy.deepcopy(STATE)
    state["server"]["now_ns"] += 2_000_000_000
    state["devices"][0]["streams"][0]["tasks"] += 500
    state["devices"][0]["streams"][0]["busy_ns"] += 1_000_000_000
    state["accounts"][0].update(
        tasks=600,
        busy_ns=6_000_000_000,
        waiting_ns=700_000_000,
        copied_in_nbytes=5 << 20,
        copied_between_nbytes=4 << 20,
        migrations=5,
    )
    state["queues"][0].update(completed=600, **queue)
    return state


def test_one_look_shows_totals() -> None:
    assert "1.0 MiB of 1.0 GiB" in shown(devices_usage(STATE))
    assert row(shown(applications_usage(STATE)), "[bold]app") == (
        ["5.0", "s", "100", "2", "2.0", "ms", "3.0", "MiB", "1.0", "MiB", "0", "B", "4"]
    )
    assert "50%" in shown(streams_table(STATE))


def test_a_stream_of_a_part_says_which_units_it_has() -> None:
    assert "3 (1-3)" in shown(streams_table(STATE))
    whole = {**STATE, "devices": [{**STATE["devices"][0], "units": 3}]}
    assert "(1-3)" not in shown(streams_table(whole))


def test_two_looks_show_rates() -> None:
    streams, queues = shown(streams_table(later(), STATE)), shown(queues_table(later(), STATE))
    assert "250" in streams
    assert "50%" in streams
    assert "250" in queues
    text = shown(applications_usage(later(), STATE))
    assert row(text, "[bold]app") == (
        ["per", "s", "50%", "250", "0", "1.0", "ms", "1.0", "MiB", "0", "B", "2.0", "MiB", "0.5"]
    )
    assert "total 6.0 s 600 2" in " ".join(text.split())
    assert row(shown(devices_usage(later(), STATE)), "opencl:0")[:4] == ["per", "s", "50%", "250"]


def test_who_has_ended_is_one_row_that_stands_still_and_a_row_each_in_the_status() -> None:
    text = shown(applications_usage(later(), STATE))
    assert row(text, "(1 ended)")[2:5] == ["0%", "0", "0"]
    assert "ended long ago" not in text
    assert "ended long ago" in shown(applications_usage(STATE))


@pytest.mark.parametrize("width", [80, 120])
def test_every_line_of_a_frame_fits_the_terminal_and_no_number_is_cut(width: int) -> None:
    state, before = later(), copy.deepcopy(STATE)
    for item in (state, before):
        item["accounts"][0]["application"] = item["applications"][0]["account"] = "a" * 128
        item["queues"][0]["application"] = "a" * 128
        item["devices"][0]["id"] = "simulated:0"
        item["accounts"][0]["device"] = "simulated:0"
    for key in ("tasks", "failed", "migrations"):
        state["accounts"][0][key] = 123_456_789_012
    for key in ("busy_ns", "waiting_ns", "copied_in_nbytes", "copied_out_nbytes"):
        state["accounts"][0][key] = 10**16
    lines = shown(frame(state, before, width), width).splitlines()
    totals = [line for line in lines if "total" in line]
    assert len(totals) >= 3
    assert all("123 G" in line and "115 d 17 h" in line for line in totals[:2])
    assert max(len(line.rstrip()) for line in lines) <= width
    assert not any(re.search("[0-9]\u2026", line) for line in lines)


def test_a_load_that_falls_is_shown_as_none_without_a_sign() -> None:
    state = later()
    for key in ("tasks", "busy_ns", "waiting_ns", "migrations", "copied_in_nbytes"):
        state["accounts"][0][key] = 0
    assert "-" not in " ".join(row(shown(applications_usage(state, STATE)), "[bold]app")).replace(" - ", " ")
    assert "-0" not in shown(frame(state, STATE, 120))


def test_what_was_not_there_before_has_no_rate_yet() -> None:
    assert row(shown(queues_table(later(id="2.0"), STATE)), "2.0 heat")[-1] == "-"


def test_names_of_applications_cannot_paint_the_terminal() -> None:
    text = shown(frame(STATE, None, 140))
    assert "[bold]app" in text
    assert "[bold]app[12]" in shown(sessions_table(STATE))
    assert "[weird] name" in shown(devices_table(STATE))


def test_a_queue_shows_where_it_runs_and_where_it_belongs() -> None:
    text = shown(queues_table(STATE))
    assert "1.0 heat" in text
    assert "opencl:0/0, home cpu:0" in text
    assert "waiting" in shown(queues_table(later(stream=None, state="waiting", home=None)))


def test_a_lost_device_says_so() -> None:
    state = later()
    state["devices"][0]["lost"] = "unplugged"
    assert "lost: unplugged" in shown(devices_table(state))
    assert row(shown(devices_usage(state, STATE)), "opencl:0")[-1] == "lost"


def test_a_clock_that_is_corrected_shows_no_negative_load() -> None:
    state = later()
    state["devices"][0]["streams"][0]["busy_ns"] = 0
    assert "-" not in shown(streams_table(state, STATE)).splitlines()[2].split()[3]


def test_energy_is_told_with_its_mean_power_and_not_at_all_without_a_meter() -> None:
    assert energy_line(STATE) is None
    meters = [
        {"name": "package-0", "joules": 1500.0, "problem": None},
        {"name": "dram-0", "joules": None, "problem": "[root] only"},
    ]
    seconds = STATE["server"]["uptime_ns"] / 1e9
    line = energy_line(STATE | {"energy": meters})
    assert line is not None
    assert f"package-0 1,500.0 J ({1500 / seconds:.1f} W on average)" in line
    assert r"\[root] only" in line
