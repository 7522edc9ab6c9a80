"""The tables of ``status`` and ``top``, made from what the server tells; rates when there are two moments."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from polymux.cli.text import count, duration, percent, shorten, size, table
from polymux.device.cores import format_cores

State = dict[str, Any]


def server_line(state: State) -> str:
    """Say on one line which server it is."""
    server = state["server"]
    return (
        f"[bold]polymux {server['version']}[/bold], process {server['pid']}, up {duration(server['uptime_ns'])},"
        f" policy {server['policy']}, {escape(server['socket'] or 'no socket')}"
    )


def energy_line(state: State) -> str | None:
    """Say on one line what the machine's energy meters have counted since the server's start; None without any."""
    meters = state["energy"]
    if not meters:
        return None
    elapsed_s = max(1, state["server"]["uptime_ns"]) / 1e9
    told = [
        f"{meter['name']} {meter['joules']:,.1f} J ({meter['joules'] / elapsed_s:.1f} W on average)"
        if meter["problem"] is None
        else f"{meter['name']} [red]{escape(meter['problem'])}[/red]"
        for meter in meters
    ]
    return f"energy since the start: {', '.join(told)}"


def devices_table(state: State) -> Table:
    """List the devices with what they are."""
    columns = ("device", "name", "units", "streams")
    made = table("Machine", columns, columns[2:])
    for device in state["devices"]:
        name = escape(device["name"])
        if device["lost"] is not None:
            name = f"[red]lost: {escape(device['lost'])}[/red]"
        made.add_row(device["id"], name, str(device["units"]), str(len(device["streams"])))
    return made


def streams_table(state: State, before: State | None = None) -> Table:
    """List the streams of all devices with what they do."""
    columns = ("stream", "units", "queues", "busy", "tasks", "tasks/s")
    made = table("Streams", columns, columns[1:])
    for device in state["devices"]:
        earlier = _by_id(before, "devices").get(device["id"])
        for stream in device["streams"]:
            busy, rate = _stream_rates(state, stream, before, earlier)
            queues = ", ".join(stream["queues"]) or "-"
            made.add_row(
                stream["id"],
                _units(stream["units"], device["units"]),
                queues,
                busy,
                count(stream["tasks"]),
                rate,
            )
    return made


def _units(units: list[int], all_units: int) -> str:
    """Say how many units a stream has, and which if these are a part of the device."""
    text = str(len(units))
    return text if len(units) == all_units else f"{text} ({format_cores(units)})"


def sessions_table(state: State) -> Table:
    """List the connections of applications."""
    columns = ("session", "application", "process", "user", "queues", "kernels", "segment", "on devices")
    made = table("Sessions", columns, columns[2:])
    for item in state["applications"]:
        made.add_row(
            str(item["session"]),
            escape(item["name"]),
            str(item["pid"]),
            str(item["uid"]),
            str(item["queues"]),
            str(item["kernels"]),
            size(item["segment_nbytes"]),
            size(item["device_nbytes"]),
        )
    if not state["applications"]:
        made.add_row("[dim]none[/dim]")
    return made


def queues_table(state: State, before: State | None = None) -> Table:
    """List the queues: with two moments how fast they are, else what they took and where their data is."""
    more = ("busy", "on devices") if before is None else ("tasks/s",)
    columns = ("queue", "application", "runs on", "waiting", "done", "wait/task", "moves", *more)
    made = table("Queues", columns, columns[3:])
    if before is not None:
        shorten(made, 1, 16)
    earlier = _by_id(before, "queues")
    for queue in state["queues"]:
        name = queue["id"] if queue["name"] == queue["id"] else f"{queue['id']} {queue['name']}"
        made.add_row(
            escape(name),
            escape(queue["application"]),
            _where(queue),
            count(queue["pending"]),
            count(queue["completed"]),
            duration(queue["waiting_ns"] / queue["completed"]) if queue["completed"] else "-",
            count(queue["migrations"]),
            *(
                (duration(queue["busy_ns"]), size(queue["device_nbytes"]))
                if before is None
                else (
                    _rate(state, before, queue["completed"], earlier.get(queue["id"], {}).get("completed")),
                )
            ),
        )
    if not state["queues"]:
        made.add_row("[dim]none[/dim]")
    return made


def _by_id(state: State | None, kind: str) -> dict[str, Any]:
    return {} if state is None else {item["id"]: item for item in state[kind]}


def _where(queue: dict[str, Any]) -> str:
    """Say where a queue runs, and what is special about it."""
    text = str(queue["stream"] or queue["state"] or "opening")
    if queue["state"] not in (None, "bound", text):
        text += f", {queue['state']}"
    if queue["home"] is not None:
        text += f", home {queue['home']}"
    if queue["pinned"] is not None:
        text += ", pinned"
    return text


def _stream_rates(
    state: State, stream: dict[str, Any], before: State | None, earlier: dict[str, Any] | None
) -> tuple[str, str]:
    if before is None or earlier is None:
        return percent(stream["busy_ns"], state["server"]["uptime_ns"]), "-"
    then = next((other for other in earlier["streams"] if other["id"] == stream["id"]), None)
    if then is None:
        return "-", "-"
    elapsed_ns = state["server"]["now_ns"] - before["server"]["now_ns"]
    busy = percent(min(max(0, stream["busy_ns"] - then["busy_ns"]), elapsed_ns), elapsed_ns)
    return busy, _rate(state, before, stream["tasks"], then["tasks"])


def _rate(state: State, before: State | None, now: int, then: int | None) -> str:
    if before is None or then is None:
        return "-"
    elapsed_ns = state["server"]["now_ns"] - before["server"]["now_ns"]
    return count(round(max(0, now - then) * 1e9 / elapsed_ns)) if elapsed_ns > 0 else "-"
