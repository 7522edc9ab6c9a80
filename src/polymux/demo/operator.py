"""The operator: watches the server and moves the numerical application between devices, as ``polymux migrate`` does."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import Any

import polymux
from polymux.core.errors import PolymuxError
from polymux.demo.failure import DemoFailed
from polymux.demo.heat import APPLICATION, KERNEL

__all__ = ["Migration", "Operator", "Place"]

_LOOK_S = 0.25
_ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Migration:
    """A queue that was moved on command.

    Attributes
    ----------
    asked_ns, done_ns : int
        When it was asked for, and when the queue was bound to the other device; of the machine's monotonic clock.
    source, target : str
        Devices.
    problem : str
        Why it was refused; empty when it was done.
    """

    asked_ns: int
    done_ns: int
    source: str
    target: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something runs, as the server told last.

    Attributes
    ----------
    device, stream : str
        Empty when it runs nowhere at the moment.
    """

    device: str
    stream: str


class Operator:
    """Asks the server four times a second how things are, and migrates a queue now and then.

    Parameters
    ----------
    socket : str
        The server's socket.
    period_s : float
        Time between two migrations.
    """

    def __init__(self, socket: str, period_s: float) -> None:
        self._client = polymux.connect(socket, name="polymux demo", start=False)
        self._period_s = period_s
        self._lock = threading.Lock()
        self._status: dict[str, Any] = self._ask("status")
        self._migrations: list[Migration] = []
        self._applications: dict[str, str] = {}
        self._problem: str | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="polymux-demo-operator", daemon=True)
        self.devices = self._devices_of_the_kernel()

    def start(self) -> None:
        """Begin to migrate, the first time after one period."""
        self._thread.start()

    def stop(self) -> None:
        """Migrate no more and look no more, except when told to.

        Raises
        ------
        DemoFailed
            When the server does not answer what it was asked last.
        """
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_ANSWER_TIMEOUT_S)
            if self._thread.is_alive():
                raise DemoFailed(f"the server has not answered a request for {_ANSWER_TIMEOUT_S:.0f} s")

    def look(self) -> None:
        """Ask the server how things are."""
        status = self._ask("status")
        with self._lock:
            self._status = status
            self._applications |= {queue["id"]: queue["application"] for queue in status["queues"]}

    def close(self) -> None:
        """Stop and disconnect."""
        self._ending.set()
        self._client.close()

    @property
    def status(self) -> dict[str, Any]:
        """What the server told last."""
        with self._lock:
            return self._status

    @property
    def migrations(self) -> list[Migration]:
        """Migrations so far."""
        with self._lock:
            return list(self._migrations)

    @property
    def problem(self) -> str | None:
        """Why the server can no longer be asked; None: it can."""
        return self._problem

    def applications(self) -> dict[str, str]:
        """Return the application that each queue seen so far belongs to, by the queue's id."""
        with self._lock:
            return dict(self._applications)

    def place(self) -> Place:
        """Return where the application's queue is now."""
        queue = self._queue()
        return Place("", "") if queue is None else Place(queue["device"] or "", queue["stream"] or "")

    def copied_nbytes(self) -> int:
        """Return the bytes copied into and out of the memories of all devices so far."""
        devices = self.status["devices"]
        return sum(device["copied_in_nbytes"] + device["copied_out_nbytes"] for device in devices)

    def _run(self) -> None:
        next_at = time.monotonic() + self._period_s
        try:
            while not self._ending.wait(_LOOK_S):
                self.look()
                if time.monotonic() >= next_at and len(self.devices) > 1:
                    self._migrate()
                    next_at += self._period_s
        except PolymuxError as error:
            self._problem = str(error)

    def _migrate(self) -> None:
        queue = self._queue()
        if queue is None or queue["device"] not in self.devices:
            return
        source = queue["device"]
        target = self.devices[(self.devices.index(source) + 1) % len(self.devices)]
        asked_ns, problem = time.monotonic_ns(), ""
        try:
            self._client.request("migrate", {"queue": queue["id"], "device": target})
        except PolymuxError as error:
            if self._client.server_gone:
                raise
            problem = str(error)
        migration = Migration(asked_ns, time.monotonic_ns(), source, target, problem)
        with self._lock:
            self._migrations.append(migration)

    def _queue(self) -> dict[str, Any] | None:
        queues: list[dict[str, Any]] = self.status["queues"]
        return next((queue for queue in queues if queue["application"] == APPLICATION), None)

    def _devices_of_the_kernel(self) -> list[str]:
        kernels: list[dict[str, Any]] = self._ask("kernels")
        return next((list(kernel["devices"]) for kernel in kernels if kernel["name"] == KERNEL), [])

    def _ask(self, what: str) -> Any:
        reply, _ = self._client.request(what)
        return json.loads(reply["json"])
