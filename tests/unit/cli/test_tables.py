"""The tables of `status` and `top`, from what a server would tell."""

from __future__ import annotations

import copy
import io
from typing import Any

from rich.console import Console

from polymux.cli.tables import devices_table, queues_table, streams_table
from polymux.cli.top import frame

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
            "streams": [
                {
                    "id": "opencl:0/0",
                    "units": (1, 2, 3),
                    "tasks": 100,
                    "busy_ns": 5_000_000_000,
                    "queues": {"1.0": {}},
                }
            ],
        }
    ],
    "absent": [],
    "applications": [],
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
            "device_nbytes": 1024,
        }
    ],
}


def shown(renderable: Any) -> str:
    output = io.StringIO()
    Console(file=output, width=140).print(renderable)
    return output.getvalue()


def later(**queue: Any) -> dict[str, Any]:
    state = copy.deepcopy(STATE)
    state["server"]["now_ns"] += 2_000_000_000
    state["devices"][0]["streams"][0]["tasks"] += 500
    state["devices"][0]["streams"][0]["busy_ns"] += 1_000_000_000
    state["queues"][0].update(completed=600, **queue)
    return state


def test_one_look_shows_totals() -> None:
    assert "1.0 MiB of 1.0 GiB" in shown(devices_table(STATE))
    assert "50%" in shown(streams_table(STATE))


def test_two_looks_show_rates() -> None:
    streams, queues = shown(streams_table(later(), STATE)), shown(queues_table(later(), STATE))
    assert "250" in streams
    assert "50%" in streams
    assert "250" in queues


def test_what_was_not_there_before_has_no_rate_yet() -> None:
    assert "250" not in shown(queues_table(later(id="2.0"), STATE))


def test_names_of_applications_cannot_paint_the_terminal() -> None:
    text = shown(frame(STATE, None))
    assert "[bold]app" in text
    assert "[weird] name" in text


def test_a_queue_shows_where_it_runs_and_where_it_belongs() -> None:
    text = shown(queues_table(STATE))
    assert "1.0 heat" in text
    assert "opencl:0/0, home cpu:0" in text
    assert "waiting" in shown(queues_table(later(stream=None, state="waiting", home=None)))


def test_a_lost_device_says_so() -> None:
    state = later()
    state["devices"][0]["lost"] = "unplugged"
    assert "lost: unplugged" in shown(devices_table(state))


def test_a_clock_that_is_corrected_shows_no_negative_load() -> None:
    state = later()
    state["devices"][0]["streams"][0]["busy_ns"] = 0
    assert "-" not in shown(streams_table(state, STATE)).splitlines()[2].split()[3]
