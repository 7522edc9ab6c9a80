"""``polymux migrate``: move a queue to another device while its application goes on."""

from __future__ import annotations

import argparse

from polymux.cli.connection import AdminConnection, add_socket_option, socket_path
from polymux.cli.text import duration, size


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "migrate",
        help="move a queue to another device",
        description="Move a queue to another device while its application goes on: the task that runs ends where it"
        " is, the next ones run at the target, and their data follow.",
        epilog="'polymux status' shows the queues, 'polymux devices' the devices.",
    )
    parser.add_argument("queue", metavar="QUEUE", help="id of the queue, such as 3.0, or its name")
    parser.add_argument("device", metavar="DEVICE", help="where to, such as cpu:0 or opencl:0")
    add_socket_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Ask for the migration and say what came of it."""
    with AdminConnection(socket_path(options)) as connection:
        answer = connection.request("migrate", {"queue": options.queue, "device": options.device})
    pending, nbytes, buffers = (int(answer[key]) for key in ("pending", "nbytes", "buffers"))
    print(f"{answer['message']} after {duration(int(answer['elapsed_ns']))}")
    if pending == 0:
        print("no task was waiting: data move when the next ones run")
    else:
        tasks = "task" if pending == 1 else "tasks"
        what = "buffer follows" if buffers == 1 else "buffers follow"
        print(f"{pending} {tasks} waiting; {buffers} {what} them ({size(nbytes)})")
    return 0
