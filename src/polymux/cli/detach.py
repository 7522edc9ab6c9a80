"""Starts a server that goes on by itself, and waits until it is ready."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from polymux.cli.connection import AdminConnection
from polymux.core.errors import NoServer, PolymuxError

READY_S = 120.0


class NotStartedError(PolymuxError):
    """The server ended before it was ready."""


def detach(path: Path, log: Path) -> int:
    """Run this process' own command again without ``--detach``, in a session of its own.

    Parameters
    ----------
    path : Path
        Of the socket that it will have.
    log : Path
        What it prints is appended there.

    Raises
    ------
    NotStartedError
        With the last lines that it wrote.
    """
    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "polymux.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        if _is_ready(path, process.pid):
            print(f"polymux runs at {path} (process {process.pid}); it writes to {log}")
            return 0
        time.sleep(0.05)
    written = log.read_bytes()[begin:].decode(errors="replace").strip()
    raise NotStartedError(f"the server did not start:\n{written[-2000:]}")


def _is_ready(path: Path, pid: int) -> bool:
    if not os.path.exists(path):
        return False
    try:
        with AdminConnection(path) as connection:
            return int(connection.request_json("status")["server"]["pid"]) == pid
    except NoServer:
        return False
