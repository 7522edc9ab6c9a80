"""Starts `polymux serve` and `polymux up` in processes of their own, as an operator does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLYMUX = str(Path(sys.executable).with_name("polymux"))


@dataclass
class FrontEnd:
    """A running front end."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def get(self, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Send a request (POST when there is a body) and return status and JSON of the answer."""
        request = urllib.request.Request(f"http://{self.url}{path}", data=body)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def index(self) -> dict[str, dict[str, str]]:
        """Return the repository index by name."""
        return {entry["name"]: entry for entry in self.get("/v2/repository/index", b"")[1]}

    def wait_until_loaded(self, timeout_s: float = 60) -> None:
        """Wait until no model is loading any more."""
        self.wait_for(lambda: all(entry["state"] != "LOADING" for entry in self.index().values()), timeout_s)

    def wait_for(self, condition: Any, timeout_s: float = 30) -> None:
        """Wait until `condition()` holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


@contextmanager
def serving(
    repository: Path,
    *options: str,
    environment: dict[str, str] | None = None,
    descriptors: int | None = None,
) -> Iterator[FrontEnd]:
    """Run a front end on a free port; without a server to join it brings its own runtime.

    With `descriptors` it may have no more of them.
    """
    with tempfile.TemporaryDirectory(prefix="polymux-test-") as folder:
        log = Path(folder) / "log"
        # A runtime directory of its own keeps it from joining the server of whoever runs the tests.
        variables = {key: value for key, value in os.environ.items() if key != "POLYMUX_SOCKET"}
        variables |= {"XDG_RUNTIME_DIR": folder, **(environment or {})}
        limited = () if descriptors is None else ("prlimit", f"--nofile={descriptors}")
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [*limited, POLYMUX, "serve", str(repository), "--port", "0", *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=variables,
            )
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.search(r"http://(\S+)", first)
            assert found is not None, first + log.read_text()
            yield FrontEnd(process, found[1], log)
        finally:
            end(process)


@contextmanager
def server(socket: Path, *devices: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Polymux server, by default with the device `cpu`."""
    options = [word for device in devices or ("cpu",) for word in ("--device", device)]
    process = subprocess.Popen(
        [POLYMUX, "up", "--socket", str(socket), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(socket.parent)},
    )
    try:
        deadline = time.monotonic() + 30
        while not socket.exists():
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            end(process)


def end(process: subprocess.Popen[str]) -> int:
    """End a process as an operator does, and return its exit status."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
