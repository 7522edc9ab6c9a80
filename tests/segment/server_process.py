"""A server in a process of its own, as `polymux up` starts it, and what the system says about that process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polymux.client import Client
from polymux.core.errors import NoServer

START_S = 60.0


class ServerProcess:
    """Runs from entering the ``with`` block to leaving it.

    Parameters
    ----------
    folder : Path
        For the socket and the log.
    arguments : str
        Further ones of ``polymux up``.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.socket = folder / "polymux.sock"
        self.log = folder / "polymux.log"
        self._words = [sys.executable, "-m", "polymux.cli", "up", "--socket", str(self.socket), *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process is not None:
            self.stop()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                self.connect().close()
            except NoServer:
                time.sleep(0.02)
            else:
                return
        raise AssertionError(f"the server did not start: {self.log.read_text()}")

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGUSR1)  # it writes what its threads do
            time.sleep(0.5)
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server does not end: {self.log.read_text()}") from None
        finally:
            self.process = None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def connect(self, name: str = "test") -> Client:
        return Client(str(self.socket), name=name, segment_nbytes=64 << 20)

    def status(self) -> dict[str, Any]:
        with self.connect("status") as client:
            reply, _ = client.request("status")
            state: dict[str, Any] = json.loads(reply["json"])
        state["applications"] = [item for item in state["applications"] if item["name"] != "status"]
        return state

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def children(self) -> list[int]:
        found = []
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                text = Path(f"/proc/{self.pid}/task/{task}/children").read_text()
                found += [int(pid) for pid in text.split()]
        return found

    def rss_nbytes(self) -> int:
        """Resident memory that is the server's own, without the clients' segments."""
        fields = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in fields if line.startswith("RssAnon:"))) * 1024

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until a condition holds; how long it took does not matter."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)
