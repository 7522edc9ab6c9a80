"""``polymux devices``: what was found, and for what is absent the reason."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from polymux.cli.connection import (
    AdminConnection,
    add_json_option,
    add_socket_option,
    print_json,
    socket_path,
)
from polymux.cli.text import size, table, terminal
from polymux.core.errors import NoServer
from polymux.device.energy_meter import find_meters
from polymux.device.model_libraries import model_libraries
from polymux.device.registry import close_all, discover


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "devices",
        help="list the devices, and say why others are absent",
        description="List the devices of the running server, and say why others are absent."
        " Without a server, look at the machine itself.",
    )
    add_socket_option(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the devices."""
    found: dict[str, Any]
    try:
        with AdminConnection(socket_path(options)) as connection:
            found = connection.request_json("devices")
        title = f"Devices of the server at {socket_path(options)}"
    except NoServer:
        if options.socket is not None:
            raise
        found = look()
        title = "Devices of this machine (no server runs)"
    found["models"] = [asdict(library) for library in model_libraries()]
    if options.json:
        print_json(found)
    else:
        show(found, title, terminal())
    return 0


def look() -> dict[str, Any]:
    """Find the machine's devices without a server."""
    devices, absent = discover()
    try:
        found: list[dict[str, Any]] = [
            {
                "id": device.spec.id,
                "api": device.spec.api,
                "name": device.spec.name,
                "memory": device.spec.memory,
                "memory_nbytes": device.spec.memory_nbytes,
                "units": device.spec.units,
                "apis": list(device.spec.apis),
                "details": device.spec.details,
                "lost": None,
                "streams": [{}] * device.spec.streams,
            }
            for device in devices
        ]
    finally:
        close_all(devices)
    missing = (*absent, *find_meters().absent)
    return {"devices": found, "absent": [{"name": item.name, "reason": item.reason} for item in missing]}


def show(found: dict[str, Any], title: str, console: Console) -> None:
    """Print tables of what was found and what is absent."""
    rows = table(title, ("device", "name", "units", "streams", "memory", "runs"), ("units", "streams"))
    for device in found["devices"]:
        memory = size(device["memory_nbytes"])
        kind = f"{memory}, the host's" if device["memory"] == "host" else f"{memory} of its own"
        rows.add_row(
            device["id"],
            escape(device["name"]),
            str(device["units"]),
            str(len(device["streams"])),
            kind,
            ", ".join(device["apis"]),
        )
    console.print(rows)
    for device in found["devices"]:
        if device["details"]:
            console.print(f"[dim]{device['id']}: {escape(device['details'])}[/dim]")
        if device["lost"] is not None:
            console.print(f"[red]{device['id']} is lost: {escape(device['lost'])}[/red]")
    if found["absent"]:
        missing = table("\nAbsent", ("device", "reason"))
        for item in found["absent"]:
            missing.add_row(escape(item["name"]), escape(item["reason"]))
        console.print(missing)
    libraries = table("\nWhat runs models", ("library", "version", "how"))
    for library in found["models"]:
        libraries.add_row(library["name"], library["version"] or "absent", escape(library["use"]))
    console.print(libraries)
