"""Who took how much of which device: tasks, time, waiting, copies, migrations; also applications that have ended.

Notes
-----
An account belongs to the name of an application and one device, so the sum over the applications is the sum over the
devices. What a stream does for a queue is counted there until it lets go of the queue; then it is added here. A reader
adds both, this side first: what is on its way from there to here is missing for a moment and never counted twice, and
no number that was told once becomes smaller.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from polymux.server.jobs.lease import Held
from polymux.server.placement import HOST
from polymux.server.transfer import Transfer

OTHER = "other"
"""Stands for the applications whose names are not kept."""
NO_DEVICE = "none"
"""Where tasks are counted that were refused without having reached a device."""
MAX_NAMES = 128
"""Names that are kept: more than there can be clients at a time."""
MAX_ENDED = 1024
"""Sessions that are remembered after their end, for copies of their data that were under way."""

_PROCESS = re.compile(r"\[\d+\]$|^pid \d+$")


@dataclass(slots=True)
class Account:
    """What one application took of one device since the server's start."""

    tasks: int = 0
    """Tasks that have ended."""
    failed: int = 0
    """Those of them that ended with an error."""
    busy_ns: int = 0
    """Time of the device's streams, in ns."""
    waiting_ns: int = 0
    """From submission to start, summed over the tasks, in ns."""
    copied_in_nbytes: int = 0
    """From the host into the device's memory."""
    copied_out_nbytes: int = 0
    """From the device's memory to the host."""
    copied_between_nbytes: int = 0
    """From another device's memory into this one's."""
    migrations: int = 0
    """Queues that came from another device."""
    job_ns: int = 0
    """Time for which its jobs held the device."""
    preemptions: int = 0
    """How often the device was taken from a job of it."""

    def add(self, other: Account) -> None:
        """Add another account to this one."""
        for field in FIELDS:
            setattr(self, field, getattr(self, field) + getattr(other, field))

    def raise_to(self, other: Account) -> None:
        """Make no number smaller than another account's."""
        for field in FIELDS:
            setattr(self, field, max(getattr(self, field), getattr(other, field)))


FIELDS = tuple(field.name for field in fields(Account))
Stats = Callable[[], Mapping[str, Any]]
Cell = tuple[str, str]
Holding = Callable[[], Iterable[tuple[int, str, int]]]


def account_name(name: str) -> str:
    """Name of the account of an application: its own without the number of its process.

    Notes
    -----
    Runs of one program share an account, and there are no more accounts than programs.
    """
    return _PROCESS.sub("", name).strip() or "unnamed"


class Accounts:
    """All accounts; usable from any thread.

    Notes
    -----
    When there are `MAX_NAMES` names, the account of the application that ended longest ago goes into `OTHER`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._cells: OrderedDict[str, dict[str, Account]] = OrderedDict()
        self._told: dict[Cell, Account] = {}
        self._sessions: dict[int, str] = {}
        self._ended: OrderedDict[int, str] = OrderedDict()
        self._open: dict[str, int] = {}
        self._workers: list[tuple[str, Stats]] = []
        self._holding: Holding = list

    def watch(self, device: str, stats: Stats) -> None:
        """Count what a worker does for the queues that it has now; `stats` is `Worker.stats`."""
        self._workers.append((device, stats))

    def opened(self, session: int, name: str) -> None:
        """Note that an application has connected."""
        name = account_name(name)
        with self._lock:
            self._sessions[session] = name
            self._open[name] = self._open.get(name, 0) + 1
            self._kept(name)

    def closed(self, session: int) -> None:
        """Note that an application is gone; what it did is kept under its name."""
        with self._lock:
            name = self._sessions.pop(session, None)
            if name is None:
                return
            self._ended[session] = name
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)
            self._open[name] -= 1
            if self._open[name] == 0:
                del self._open[name]
            if name in self._cells:
                self._cells.move_to_end(name)

    def ran(self, queue: str, device: str, tasks: int, busy_ns: int, waiting_ns: int, failed: int) -> None:
        """Add what a stream did for a queue that it has let go of."""
        with self._lock:
            account = self._account(queue, device)
            account.tasks += tasks
            account.busy_ns += busy_ns
            account.waiting_ns += waiting_ns
            account.failed += failed

    def moved(self, queue: str, device: str) -> None:
        """Count a queue that came to a device from another one."""
        with self._lock:
            self._account(queue, device).migrations += 1

    def held(self, held: Held) -> None:
        """Count a time for which a job held a device, and whether it was taken from it."""
        with self._lock:
            account = self._account(f"{held.lease.session.id}.", held.device)
            account.job_ns += held.end_ns - held.start_ns
            account.preemptions += held.taken_back

    def copied(self, transfer: Transfer) -> None:
        """Count a copy for the application whose task used the data last."""
        with self._lock:
            account = self._account(transfer.queue, transfer.device)
            if transfer.source == HOST:
                account.copied_in_nbytes += transfer.nbytes
            elif transfer.target == HOST:
                account.copied_out_nbytes += transfer.nbytes
            else:
                account.copied_between_nbytes += transfer.nbytes

    def table(self) -> dict[Cell, Account]:
        """Give a copy of all accounts, by application and device."""
        with self._reading:  # two readers at a time could tell numbers in the wrong order
            with self._lock:
                found = {
                    (name, device): replace(account)
                    for name, accounts in self._cells.items()
                    for device, account in accounts.items()
                }
            for device, stats in self._workers:
                self._add_running(found, device, stats()["queues"])
            for session, device, held_ns in self._holding():
                with self._lock:
                    cell = (self._kept(self._name(f"{session}.")), device)
                found.setdefault(cell, Account()).job_ns += held_ns
            for cell, account in found.items():
                account.raise_to(self._told.get(cell, account))
            self._told = {cell: replace(account) for cell, account in found.items()}
            return found

    def watch_jobs(self, holding: Holding) -> None:
        """Count what jobs hold now; `holding` gives session, device and time in ns of each."""
        self._holding = holding

    def open_names(self) -> dict[str, int]:
        """Count the sessions of each application that is connected."""
        with self._lock:
            return dict(self._open)

    def _add_running(
        self, found: dict[Cell, Account], device: str, queues: Mapping[str, Mapping[str, int]]
    ) -> None:
        for queue, counts in queues.items():
            with self._lock:
                cell = (self._kept(self._name(queue)), device)
            found.setdefault(cell, Account()).add(Account(**counts))

    def _account(self, queue: str, device: str) -> Account:
        return self._cells[self._kept(self._name(queue))].setdefault(device, Account())

    def _name(self, queue: str) -> str:
        number = queue.partition(".")[0]
        if not number:
            return OTHER
        session = int(number)
        return self._sessions.get(session) or self._ended.get(session, OTHER)

    def _kept(self, name: str) -> str:
        """Name under which an application is counted: its own or `OTHER`; it has a place from then on."""
        if name not in self._cells:
            if len(self._cells) >= MAX_NAMES and not self._make_room():
                name = OTHER
            self._cells.setdefault(name, {})
        return name

    def _make_room(self) -> bool:
        """Put the account of the application that ended longest ago into `OTHER`."""
        name = next((name for name in self._cells if name != OTHER and name not in self._open), None)
        if name is None:
            return False
        others = self._cells.setdefault(OTHER, {})
        for device, account in self._cells.pop(name).items():
            others.setdefault(device, Account()).add(account)
        return True


def total(accounts: Iterable[Account]) -> Account:
    """Add accounts up."""
    result = Account()
    for account in accounts:
        result.add(account)
    return result
