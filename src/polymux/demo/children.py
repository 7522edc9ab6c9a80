"""The server and the front end as child processes: started, watched, ended; their output goes into files."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import polymux
from polymux.core.errors import NoServer
from polymux.demo.failure import DemoFailed
from polymux.demo.http_models import HttpModels

__all__ = ["Child", "start_front_end", "start_server", "wait_for_front_end", "wait_for_server"]

Waiting = Callable[[], None]
"""Called while something is awaited, several times a second; may raise to give up."""

_START_TIMEOUT_S = 90.0
_END_TIMEOUT_S = 15.0
_LOOK_S = 0.05
_LAST_LINES = 15
_ADDRESS = re.compile(r"http://(\S+:\d+)")


class Child:
    """A ``polymux`` command in a process of its own, ended with the ``with`` block.

    Parameters
    ----------
    words : sequence of str
        The command's arguments.
    log : Path
        Where its output goes.
    """

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self.name = f"polymux {words[0]}"
        self._log = log
        command = [sys.executable, "-m", "polymux.cli", *words]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is this process' business, which ends it in order
            )

    def output(self) -> str:
        """Return what it has written so far."""
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        """Raise `DemoFailed` with its last lines if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise DemoFailed(self._story(f"ended with exit code {code}"))

    def wait_until(self, ready: Callable[[], bool], waiting: Waiting) -> None:
        """Wait until it is ready; `DemoFailed` when it ends or takes too long."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not ready():
            self.check()
            waiting()
            if time.monotonic() > deadline:
                raise DemoFailed(self._story(f"was not ready within {_START_TIMEOUT_S:.0f} s"))
            time.sleep(_LOOK_S)

    def end(self) -> None:
        """End it and wait for that; `DemoFailed` when it ends with an error or has to be killed."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            code = self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise DemoFailed(self._story(f"did not end within {_END_TIMEOUT_S:.0f} s of SIGTERM")) from None
        if code:
            raise DemoFailed(self._story(f"ended with exit code {code}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.end()
            return
        self._process.terminate()  # something else went wrong: that is what has to be told
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _story(self, what: str) -> str:
        lines = self.output().splitlines()[-_LAST_LINES:]
        told = "\n".join(f"  {line}" for line in lines) if lines else "  (it wrote nothing)"
        return f"`{self.name}` {what}; its last lines:\n{told}"


def start_server(socket: Path, trace: Path, devices: Sequence[str], log: Path) -> Child:
    """Start ``polymux up`` on a private socket, with a trace."""
    words = ["up", "--socket", str(socket), "--trace", str(trace)]
    for device in devices:
        words += ["--device", device]
    return Child(words, log)


def wait_for_server(server: Child, socket: Path, waiting: Waiting) -> None:
    """Wait until the server answers."""

    def ready() -> bool:
        try:
            polymux.connect(str(socket), name="polymux demo", start=False).close()
        except NoServer:
            return False
        return True

    server.wait_until(ready, waiting)


def start_front_end(models: Path, socket: Path, log: Path) -> Child:
    """Start ``polymux serve`` on a free port of the loopback interface."""
    return Child(["serve", str(models), "--socket", str(socket), "--host", "127.0.0.1", "--port", "0"], log)


def wait_for_front_end(front_end: Child, waiting: Waiting) -> str:
    """Wait until the front end has loaded all models; its address, ``HOST:PORT``."""
    front_end.wait_until(lambda: _ADDRESS.search(front_end.output()) is not None, waiting)
    found = _ADDRESS.search(front_end.output())
    assert found is not None
    models = HttpModels(found[1])
    try:
        front_end.wait_until(models.is_ready, waiting)
    finally:
        models.close()
    return found[1]
