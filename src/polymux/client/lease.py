"""A lease: the right of a job, which computes in its own process, to use a device until somebody else needs it."""

from __future__ import annotations

import json
import os
import select
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from polymux.core.errors import Closed, InvalidRequest, LeaseLost, ServerGone
from polymux.segment import GATE_BITS, GATE_BOUNDARY, GATE_OPEN, GATE_OVER, GATE_SERVER_GONE, GATE_STEP

if TYPE_CHECKING:
    from polymux.client.client import Client

OUTER = "POLYMUX_LEASE"
"""Environment variable with the lease that holds the process as a whole, as ``polymux run`` sets it."""
LEVELS = ("step", "boundary", "launches", "idle", "stop")
"""Ways in which a device can be taken away from a job, cheapest first."""
REPORT_EVERY_NS = 100_000_000

_WORDS = (1 << GATE_BITS) - 1
_LOOK_AGAIN_NS = 200_000_000
_SHUT = (1,)
"""Stands for the gate while the job has not taken note of where it may run."""


class Lease:
    """A job's lease on a device; `polymux.Client.lease` makes one.

    A job computes in its own process, by whatever library, and looks at its lease between two parts of its work:
    `check` in the middle of a run (a training step, a batch), `step` between two runs. Both return at once while nobody
    else needs the device, otherwise when the job may go on. A new lease has no device: the first `check` or `step`
    waits for one.

    Attributes
    ----------
    gate : memoryview
        32-bit words in memory shared with the server; the first is 0 while the job may go on.
    job : str
        The job's id, as ``polymux status`` shows it.
    levels : tuple of str
        Of `LEVELS`: how the server takes the device away.
    device : str or None
        Where the job may run, since the last `check` or `step`; None before the first.
    cores : tuple of int
        The host's cores of the device, by their numbers; empty for another kind of device.
    threads : int
        How many threads the job should use there.

    Notes
    -----
    `check` takes some 0.1 us while the job may go on. It is safe from any thread.
    """

    def __init__(self, client: Client, name: str, fields: dict[str, str]) -> None:
        reply, _ = client.request("lease_open", fields)
        self.name = name
        self.job = reply["job"]
        self.levels = tuple(reply["levels"].split(","))
        self.device: str | None = None
        self.cores: tuple[int, ...] = ()
        self.threads = 1
        self._client = client
        self._index = int(reply["gate"])
        self._devices: list[dict[str, Any]] = json.loads(reply["devices"])
        self.gate = memoryview(client.gate(self._index))  # type: ignore[arg-type]  # an array is one since Python 3.12
        self._word: Sequence[int] = _SHUT
        self._lock = threading.Lock()
        self._closed = False
        self._reported_ns = time.monotonic_ns()
        self._longest_ns = 0
        _watch(client)

    def check(self) -> bool:
        """Give way if somebody needs the device; for boundaries in the middle of a run.

        Returns
        -------
        bool
            Whether the job had to wait. Its `device` may be another one then.

        Raises
        ------
        LeaseLost
            When the lease was taken away for good, with the reason.
        ServerGone
            When the server is gone: nobody watches over the device any more.
        Closed
            After `close`.
        """
        if not self._word[0]:
            return False
        return self._look(between_runs=False, timeout=None)

    def step(self) -> bool:
        """Give way if somebody needs the device; between two runs, when the job has no intermediate results.

        Otherwise as `check`.
        """
        if not self._word[0]:
            return False
        return self._look(between_runs=True, timeout=None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job may run, as `step` does, for so many seconds at most.

        Raises
        ------
        TimeoutError
            When it may not by then; it still waits for its turn.
        """
        return self._look(between_runs=True, timeout=timeout) if self._word[0] else False

    def idle(self) -> None:
        """Say that the job has no work for now; the next `check` or `step` asks for a device again."""
        self._check_open()
        with self._lock:
            self._request("lease_idle")

    def report(self, run_ns: int = 0, boundary_ns: int = 0) -> None:
        """Tell how long a run took, and the longest time between two boundaries in it; in ns, 0: not known.

        Notes
        -----
        Call it after every run: what it says is sent some ten times a second.
        """
        self._longest_ns = max(self._longest_ns, boundary_ns)
        now = time.monotonic_ns()
        if now - self._reported_ns < REPORT_EVERY_NS:
            return
        self._reported_ns = now
        longest, self._longest_ns = self._longest_ns, 0
        self._request("lease_report", run_ns=str(max(0, run_ns)), boundary_ns=str(max(0, longest)))

    def close(self) -> None:
        """End the lease; the job goes on without one. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        if not (self._client.closed or self._client.server_gone):
            try:
                self._client.request("lease_close", {"gate": str(self._index)})
            except ServerGone:
                return

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its client."""
        return self._closed or self._client.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self.closed else f"on {self.device}" if self.device else "no device yet"
        return f"<Lease {self.job} of {self.name}: {where}>"

    def _look(self, *, between_runs: bool, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            waited = self._word is _SHUT
            self._word = _SHUT  # until it has arrived, whatever ends the wait
            while (word := self.gate[0]) != GATE_OPEN:
                self._check_open()
                if word == GATE_SERVER_GONE:
                    raise ServerGone(
                        "the server is gone; connect again when it is back, or go on without a lease"
                    )
                what = word & _WORDS
                if what == GATE_STEP and not between_runs:
                    break
                reply = self._request("lease_wait", between_runs=str(int(between_runs)))
                if what == GATE_OVER or "over" in reply:
                    raise LeaseLost(reply.get("over", "the lease is over"))
                waited = True
                self._sleep(end)
            self._arrive()
            self._word = self.gate
        return waited

    def _sleep(self, end: float | None) -> None:
        """Sleep until the gate says something new; signals are handled meanwhile."""
        word = self.gate[0]
        while word != GATE_OPEN and word & _WORDS == GATE_BOUNDARY and self.gate[0] == word:
            left_ns = _LOOK_AGAIN_NS
            if end is not None:
                left_ns = min(left_ns, round((end - time.monotonic()) * 1e9))
                if left_ns <= 0:
                    raise TimeoutError(f"{self.name} ({self.job}) waits for a device still")
            self._client.gate_wait(self._index, word, left_ns)

    def _arrive(self) -> None:
        device = self._devices[self.gate[1]]
        self.device = device["id"]
        self.cores = tuple(device["cores"])
        self.threads = device["threads"]

    def _request(self, verb: str, **fields: str) -> dict[str, str]:
        self._check_open()
        reply, _ = self._client.request(verb, {"gate": str(self._index), **fields})
        return reply

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the lease of {self.name} is closed")


def lease_fields(
    name: str,
    *,
    priority: int | None,
    weight: int | None,
    memory_nbytes: int,
    peak_nbytes: int,
    device: str | Sequence[str] | None,
    levels: Sequence[str] | None,
    boundary_ns: int,
    pid: int | None,
) -> dict[str, str]:
    """Fields of a ``lease_open`` request; what is not said is as in the lease that holds this process, if there is one.

    Raises
    ------
    InvalidRequest
        For a level that there is not.
    """
    wrong = next((level for level in levels or () if level not in LEVELS), None)
    if wrong is not None:
        raise InvalidRequest(f"level {wrong!r} is unknown; there are {', '.join(LEVELS)}")
    fields = {
        "name": name,
        "memory_nbytes": str(memory_nbytes),
        "peak_nbytes": str(peak_nbytes),
        "levels": ",".join(default_levels() if levels is None else levels),
        "boundary_ns": str(boundary_ns),
        "pid": str(os.getpid() if pid is None else pid),
    }
    if priority is not None:
        fields["priority"] = str(priority)
    if weight is not None:
        fields["weight"] = str(weight)
    if device is not None:
        fields["devices"] = device if isinstance(device, str) else ",".join(device)
    return fields


def default_levels() -> tuple[str, ...]:
    """Levels of a job that looks at its lease at boundaries: all but bounded launches, and no stopping that shows.

    Notes
    -----
    An interactive shell takes a child that is stopped for suspended, and takes the terminal back. ``polymux run``
    stands between the two.
    """
    return ("step", "boundary", "idle") if _shell_watches() else ("step", "boundary", "idle", "stop")


def _shell_watches() -> bool:
    """Whether this process is a job of an interactive shell."""
    if OUTER in os.environ or os.getpgrp() != os.getpid() or os.getsid(0) == os.getpid():
        return False
    try:
        terminal = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[4]
    except (OSError, IndexError):
        return False
    return terminal != "0"


_watching: weakref.WeakSet[Client] = weakref.WeakSet()


def _watch(client: Client) -> None:
    """Have the gates of a client say so when its server is gone."""
    if client not in _watching:
        _watching.add(client)
        threading.Thread(
            target=_watch_server, args=(weakref.ref(client),), name="polymux-lease", daemon=True
        ).start()


def wait_until_gone(client: Client, timeout_s: float) -> bool:
    """Sleep until the server is gone or the client closed, which its gates say then; False when the time is over.

    Notes
    -----
    In Python, since a thread that the interpreter's end meets in C++ takes the process with it.
    """
    poller = select.poll()
    poller.register(client.fileno(), select.POLLRDHUP)
    if not poller.poll(timeout_s * 1000):
        return False
    client.shut_gates()
    return True


def _watch_server(reference: weakref.ref[Client]) -> None:
    while True:
        client = reference()
        if client is None or wait_until_gone(client, _LOOK_AGAIN_NS / 1e9):
            return
        del client
