"""``polymux kernels``: what can be submitted."""

from __future__ import annotations

import argparse
from typing import Any

from rich.markup import escape

from polymux.cli.connection import add_json_option, add_socket_option, ask, print_json
from polymux.cli.text import table, terminal
from polymux.core.errors import InvalidRequest


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "kernels",
        help="list the kernels that applications can submit",
        description="List the kernels of the running server: parameters, the devices that have an implementation,"
        " and where they come from. Kernels that an application registers for itself are not shown.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="show only this kernel, with its description")
    add_socket_option(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the kernels."""
    kernels: list[dict[str, Any]] = ask(options, "kernels")
    if options.name is not None:
        kernels = [kernel for kernel in kernels if kernel["name"] == options.name]
        if not kernels:
            raise InvalidRequest(f"there is no kernel {options.name!r}; 'polymux kernels' lists them all")
    if options.json:
        print_json(kernels)
    else:
        _show(kernels, options.name is not None)
    return 0


def _show(kernels: list[dict[str, Any]], documented: bool) -> None:
    console = terminal()
    rows = table(f"{len(kernels)} kernels", ("kernel", "(inputs) -> (outputs); scalars", "devices", "from"))
    for kernel in kernels:
        isolated = " (isolated)" if kernel["isolated"] else ""
        rows.add_row(
            escape(kernel["name"]),
            escape(kernel["signature"]),
            ", ".join(kernel["devices"]) or f"none (has {', '.join(kernel['apis'])})",
            escape(kernel["origin"] + isolated),
        )
    console.print(rows)
    if documented:
        for kernel in kernels:
            console.print("\n" + escape(kernel["doc"] or "It has no description."))
