"""Processes of the benchmark that carry out commands: a line of JSON in, a line of JSON out."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from polymux.core.errors import PolymuxError

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 5.0


class Worker:
    """Runs a module in a process of its own as long as the ``with`` block lasts; it ends with its input.

    Parameters
    ----------
    name : str
        What it is, for errors.
    module : str
        Run with ``python -m``; its only argument is a JSON object. It writes ``{}`` when it is ready, and then one
        object for each command.
    arguments : mapping
        That object.
    environment : mapping of str to str
        Added to this process's.

    Raises
    ------
    PolymuxError
        By every method, if the process ends or does not answer in time, with what it said.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._words = [sys.executable, "-m", module, json.dumps(arguments)]
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
        )
        self._left = b""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until it takes commands; several processes start at the same time."""
        self.answer(START_TIMEOUT_S)

    def tell(self, **command: Any) -> None:
        """Give a command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failed("has ended") from None

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the answer to a command."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._left:
                if not selector.select(timeout_s):
                    raise self._failed(f"did not answer within {timeout_s:g} s")
                more = os.read(self._process.stdout.fileno(), 1 << 20)
                if not more:
                    raise self._failed("has ended")
                self._left += more
        line, _, self._left = self._left.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, timeout_s: float, **command: Any) -> dict[str, Any]:
        """Give a command and wait for its answer."""
        self.tell(**command)
        return self.answer(timeout_s)

    def _failed(self, what: str) -> PolymuxError:
        self._log.seek(0)
        said = self._log.read()[-2000:].strip()
        return PolymuxError(f"the benchmark's {self._name} process {what}: {said or 'it said nothing'}")

    def _stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # it has ended with a command unread
            self._process.stdin.close()
        try:
            self._process.wait(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


def reply(message: Mapping[str, Any]) -> None:
    """Answer, from inside a worker's process."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
