"""The job's lease on a device: joined, waited for, lost with the server and found again.

When the server goes away in the middle of a step, the step is finished first: nobody is left who could want the
device. Then the job waits for a server, or goes on alone when it was told so and joins the next server that it meets.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from polymux.core.errors import NoServer, PolymuxError, ServerGone
from polymux.training.gate import OPEN, SHUT, Gate
from polymux.training.termination import Termination

_log = logging.getLogger("polymux.training")
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 5.0
_LONGEST_RETRY_ALONE_S = 30.0
_REMIND_S = 30.0
_LOOK_S = 0.1


class Lease(Protocol):
    """What the keeper needs of `polymux.client.Lease`."""

    @property
    def gate(self) -> Sequence[int]:
        """Its word in shared memory; 0: go on."""

    @property
    def device(self) -> str | None:
        """The device that it is for at the moment."""

    @property
    def cores(self) -> Sequence[int]:
        """Cores of the device; empty when it has none."""

    @property
    def threads(self) -> int:
        """How many threads the device has room for."""

    def check(self) -> object:
        """Go on, or give way and wait; in the middle of a step."""

    def step(self) -> object:
        """Go on, or give way and wait; between two steps."""

    def report(self, run_ns: int = 0, boundary_ns: int = 0) -> object:
        """Tell how long steps and ways between boundaries are; after every step."""

    def idle(self) -> object:
        """Give the device back until the next check."""

    def close(self) -> object:
        """End it."""


class LeaseKeeper:
    """Keeps the gate of a job guarded by whatever server there is.

    Parameters
    ----------
    gate : Gate
    open_lease : callable
        Connects and returns an open lease, whose `close` ends the connection too.
    where : str
        Socket of the server, for messages.
    alone : bool
        Go on without a server, rather than wait for it.
    termination : Termination
        Ends waits.
    granted : callable
        Called with the lease when it may have another device than before.
    """

    def __init__(
        self,
        gate: Gate,
        open_lease: Callable[[], Lease],
        *,
        where: str,
        alone: bool,
        termination: Termination,
        granted: Callable[[Lease], None],
    ) -> None:
        self._gate = gate
        self._open_lease = open_lease
        self._where = where
        self._alone = alone
        self._termination = termination
        self._granted = granted
        self._lease: Lease | None = None
        self._retry_s = _FIRST_RETRY_S
        self._retry_at = 0.0

    @property
    def device(self) -> str | None:
        """The device that the job has, as far as it knows; None without a server or before the first step."""
        return None if self._lease is None else self._lease.device

    def open(self) -> None:
        """Join the server.

        Raises
        ------
        PolymuxError
            When there is one and it refuses.
        """
        self._find(
            f"no server listens at {self._where}",
            "waiting for one: start it with `polymux up --detach`, or give alone=True to train without",
        )

    def ask(self, between_steps: bool) -> None:
        """Give way if somebody wants the device, and come back when it is this job's turn.

        Parameters
        ----------
        between_steps : bool
            Whether no step is under way.

        Raises
        ------
        LeaseLost
            When the lease is over.
        Interrupted
            When SIGTERM comes meanwhile.
        """
        lease = self._lease
        if lease is None:
            self._gate.word = OPEN
            return
        try:
            if between_steps:
                lease.step()
            else:
                lease.check()
        except ServerGone:
            self._lose()
            return
        self._gate.word = lease.gate
        self._granted(lease)

    def step_done(self, step_ns: int, boundary_ns: int, steps: int) -> None:
        """Report, and look for a server when there is none; called between two steps.

        Parameters
        ----------
        step_ns, boundary_ns : int
            How long a step takes, and the longest time between two boundaries, in nanoseconds.
        steps : int
            Steps done so far.

        Raises
        ------
        PolymuxError
            When a server is there and refuses.
        """
        if self._lease is not None:
            try:
                self._lease.report(run_ns=step_ns, boundary_ns=boundary_ns)
            except ServerGone:
                self._lose()
        if self._lease is None:
            self._find(
                f"the server at {self._where} is gone; step {steps} is done",
                "waiting for the server to come back (alone=True would go on without)",
            )

    def idle(self) -> None:
        """Give the device back until the next boundary."""
        if self._lease is not None:
            try:
                self._lease.idle()
            except ServerGone:
                self._lose()
            else:
                self._gate.word = SHUT

    def close(self) -> None:
        """End the lease; the gate stays open."""
        self._gate.word = OPEN
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(PolymuxError):  # the server may be gone, or have ended it
                lease.close()

    def _lose(self) -> None:
        self.close()
        self._retry_s, self._retry_at = _FIRST_RETRY_S, 0.0
        _log.info("the server at %s is gone; the step is finished first", self._where)

    def _join(self) -> bool:
        """Try to get a lease; the error that means "no server" is all that may happen."""
        try:
            self._lease = self._open_lease()
        except (NoServer, ServerGone):
            return False
        self._retry_s, self._retry_at = _FIRST_RETRY_S, 0.0
        self._gate.word = SHUT  # the next boundary asks
        return True

    def _find(self, what: str, then: str) -> None:
        if self._alone:
            self._find_while_working(what)
        elif not self._join():
            self._wait_for_server(what, then)

    def _find_while_working(self, what: str) -> None:
        now = time.monotonic()
        if now < self._retry_at:
            return
        first = self._retry_at == 0.0
        if self._join():
            if not first:
                _log.warning("a server listens at %s; the device is shared from now on", self._where)
            return
        if first:
            _log.warning("%s; going on alone", what)
        self._retry_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_ALONE_S)

    def _wait_for_server(self, what: str, then: str) -> None:
        _log.warning("%s; %s", what, then)
        began = reminded = time.monotonic()
        while True:
            due = time.monotonic() + self._retry_s
            while (now := time.monotonic()) < due:
                if self._termination.requested:
                    return
                time.sleep(min(_LOOK_S, due - now))
            if self._join():
                _log.warning("a server listens at %s; going on", self._where)
                return
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
            if time.monotonic() >= reminded + _REMIND_S:
                reminded = time.monotonic()
                _log.warning("still no server at %s after %.0f s", self._where, reminded - began)
