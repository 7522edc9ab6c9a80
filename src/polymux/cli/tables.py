"""The tables of ``status`` and ``top``, made from what the server tells; rates when there are two moments."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from polymux.cli.text import count, duration, percent, size, table

State = dict[str, Any]


def server_line(state: State) -> str:
    """Say on one line which server it is."""
    server = state["server"]
    return (
        f"[bold]polymux {server['version']}[/bold], process {server['pid']}, up {duration(server['uptime_ns'])},"
        f" policy {server['policy']}, {escape(server['socket'] or 'no socket')}"
    )


def devices_table(state: State, before: State | None = None) -> Table:
    """List the devices with their streams."""
    columns = (
        "stream",
        "name",
        "queues",
        "busy",
        "tasks",
        "tasks/s",
        "memory used",
        "copied in",
        "copied out",
    )
    made = table("Devices", columns, columns[2:])
    for device in state["devices"]:
        earlier = _by_id(before, "devices").get(device["id"])
        for number, stream in enumerate(device["streams"]):
            first = number == 0
            busy, rate = _stream_rates(state, stream, before, earlier)
            made.add_row(
                stream["id"],
                str(len(stream["queues"])),
                busy,
                count(stream["tasks"]),
                rate,
                _memory(device) if first else "",
                size(device["copied_in_nbytes"]) if first else "",
                size(device["copied_out_nbytes"]) if first else "",
            )
        if device["lost"] is not None:
            made.add_row(f"[red]lost: {escape(device['lost'])}[/red]")
    return made


def applications_table(state: State) -> Table:
    """List the applications."""
    columns = ("application", "session", "process", "user", "queues", "kernels", "segment", "on devices")
    made = table("Applications", columns, columns[1:])
    for item in state["applications"]:
        made.add_row(
            escape(item["name"]),
            str(item["session"]),
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
    """List the queues."""
    columns = (
        "queue",
        "name",
        "application",
        "state",
        "stream",
        "waiting",
        "done",
        "tasks/s",
        "moved",
        "memory",
    )
    made = table("Queues", columns, columns[5:])
    earlier = _by_id(before, "queues")
    for queue in state["queues"]:
        made.add_row(
            queue["id"],
            escape(queue["name"]),
            escape(queue["application"]),
            _queue_state(queue),
            queue["stream"] or "-",
            count(queue["pending"]),
            count(queue["completed"]),
            _rate(state, before, queue["completed"], earlier.get(queue["id"], {}).get("completed")),
            str(queue["migrations"]),
            size(queue["device_nbytes"]),
        )
    if not state["queues"]:
        made.add_row("[dim]none[/dim]")
    return made


def _by_id(state: State | None, kind: str) -> dict[str, Any]:
    return {} if state is None else {item["id"]: item for item in state[kind]}


def _memory(device: dict[str, Any]) -> str:
    if device["memory"] == "host":
        return "shared"
    return f"{size(device['used_nbytes'])} of {size(device['memory_nbytes'])}"


def _queue_state(queue: dict[str, Any]) -> str:
    text = str(queue["state"] or "opening")
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
    busy = percent(min(stream["busy_ns"] - then["busy_ns"], elapsed_ns), elapsed_ns)
    return busy, _rate(state, before, stream["tasks"], then["tasks"])


def _rate(state: State, before: State | None, now: int, then: int | None) -> str:
    if before is None or then is None:
        return "-"
    elapsed_ns = state["server"]["now_ns"] - before["server"]["now_ns"]
    return count(round(max(0, now - then) * 1e9 / elapsed_ns)) if elapsed_ns > 0 else "-"
