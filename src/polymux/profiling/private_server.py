"""A server to measure on: ``polymux up`` in another process, on a private socket."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from polymux.client import Client
from polymux.core.errors import NoServer, PolymuxError

START_TIMEOUT_S = 60.0
_PROGRAM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGTERM: end when whoever started this is gone
if os.getppid() == int(sys.argv.pop(1)):
    from polymux.cli import main
    sys.exit(main(sys.argv[1:]))
"""


class PrivateServer:
    """Runs a server as long as the ``with`` block lasts.

    Parameters
    ----------
    devices : sequence of str
        As ``polymux up --device`` takes them.
    arguments : sequence of str
        Further ones of ``polymux up``: ``["--policy", "elastic"]``.

    Attributes
    ----------
    socket : str
        Path of its socket.
    pid : int
        Of the server process.

    Raises
    ------
    PolymuxError
        On entering, if it does not start, with what it said.
    """

    socket: str
    pid: int

    def __init__(self, devices: Sequence[str], arguments: Sequence[str] = ()) -> None:
        self._arguments = [word for device in devices for word in ("--device", device)] + [*arguments]

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="polymux-private-")
        self.socket = str(Path(self._folder.name) / "socket")
        self._log = Path(self._folder.name) / "log"
        words = [
            sys.executable,
            "-c",
            _PROGRAM,
            str(os.getpid()),
            "up",
            "--socket",
            self.socket,
            *self._arguments,
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.pid = self._process.pid
        try:
            self._wait_until_up()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def connect(self, name: str) -> Client:
        """Connect to it."""
        return Client(self.socket, name=name)

    def rss_nbytes(self) -> int:
        """Return the server's resident memory in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise PolymuxError(f"the private server (process {self.pid}) has ended")

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                self.connect("waiting").close()
            except NoServer:
                time.sleep(0.02)
            else:
                return
        said = self._log.read_text()[-2000:].strip()
        raise PolymuxError(f"the private server did not start: {said.removeprefix('polymux up: ')}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
