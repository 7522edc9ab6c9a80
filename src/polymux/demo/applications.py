"""The demo's applications as processes: started, listened to, ended."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

from polymux.demo.failure import DemoFailed
from polymux.demo.message import Ended, Failed, Finding, Message, Prepared

__all__ = ["Applications"]

_SILENCE_S = 90.0
"""So long may nothing be heard of an application that has something to do."""
_END_TIMEOUT_S = 5.0


class Applications:
    """Processes that each run one application; ended with the ``with`` block."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self.end = self._context.Event()
        """Set when the load is to end; the applications' functions get it."""
        self._processes: dict[str, Any] = {}
        self._connections: dict[str, Connection] = {}
        self._prepared: set[str] = set()
        self._findings: dict[str, tuple[Finding, ...]] = {}
        self._heard_at = time.monotonic()

    def start(self, name: str, function: Callable[..., None], *arguments: Any) -> None:
        """Start an application: ``function(*arguments, end, connection)`` in a process."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=function, args=(*arguments, self.end, theirs), name=f"polymux-demo-{name}", daemon=True
        )
        process.start()
        theirs.close()
        self._processes[name] = process
        self._connections[name] = ours

    def begin(self, what: str) -> None:
        """Tell all that the load begins, and what they need to know for it."""
        for connection in self._connections.values():
            connection.send(what)
        self._heard_at = time.monotonic()

    def hear(self, timeout_s: float) -> list[Message]:
        """Wait for messages.

        Raises
        ------
        DemoFailed
            When an application cannot go on, is gone, or has long been silent.
        """
        open_connections = {
            connection: name for name, connection in self._connections.items() if name not in self._findings
        }
        heard = []
        for connection in wait(list(open_connections), timeout_s):
            assert isinstance(connection, Connection)
            heard.append(self._receive(open_connections[connection], connection))
        now = time.monotonic()
        if heard:
            self._heard_at = now
        elif now - self._heard_at > _SILENCE_S:
            names = ", ".join(open_connections.values())
            raise DemoFailed(f"nothing has been heard of {names} for {_SILENCE_S:.0f} s")
        return heard

    @property
    def all_prepared(self) -> bool:
        """Whether all are ready for the load."""
        return self._prepared == set(self._processes)

    def ended(self, name: str) -> bool:
        """Whether an application has done its part."""
        return name in self._findings

    @property
    def findings(self) -> dict[str, tuple[Finding, ...]]:
        """What each application that has ended found, in the order in which they were started."""
        return {name: self._findings[name] for name in self._processes if name in self._findings}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, process in self._processes.items():
            if name not in self._findings:
                process.terminate()
        for process in self._processes.values():
            process.join(_END_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
        for connection in self._connections.values():
            connection.close()

    def _receive(self, name: str, connection: Connection) -> Message:
        try:
            message: Message = connection.recv()
        except (EOFError, OSError):
            self._processes[name].join(_END_TIMEOUT_S)
            code = self._processes[name].exitcode
            raise DemoFailed(f"the process of the application {name} ended with exit code {code}") from None
        if isinstance(message, Prepared):
            self._prepared.add(name)
        elif isinstance(message, Ended):
            self._findings[name] = message.findings
        elif isinstance(message, Failed):
            raise DemoFailed(f"the application {name} cannot go on: {message.reason}")
        return message
