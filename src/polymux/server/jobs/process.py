"""The process of a job, as the operating system lets the server hold it up: at once, with its memory as it is."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from polymux.core.errors import InvalidRequest, PermissionDenied
from polymux.server.connection import Peer
from polymux.server.jobs.background import Background, find_backgrounds, is_beside, shares_group

_STOPPED = frozenset("Tt")
_PASSES = 4
"""How often the threads of a process are looked for: one that is not in the idle class yet may start another."""


class JobProcess:
    """A process, or all processes of the group that it leads.

    Parameters
    ----------
    pid : int
    group : bool
    background : bool
        Whether it comes after all others from `enter_background` to `leave_background`, as far as the server may have
        it so.

    Raises
    ------
    InvalidRequest
        When there is no such process.

    Notes
    -----
    A process that somebody else has stopped, such as a debugger, is left as it is: it is not continued here.
    """

    def __init__(self, pid: int, group: bool, background: bool = False) -> None:
        self.pid = pid
        self.group = group
        try:
            self._pidfd = os.pidfd_open(pid)
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequest(
                f"process {pid} cannot be held: {error.strerror}; give a running one"
            ) from None
        self.ways = find_backgrounds(pid, self._members) if background else ()
        """How it may be put into the background, the best first."""
        self.background: Background | None = None
        """How it is, is about to be, or was; None: only by its threads, within its group."""
        self._has_left = True
        self._shares = shares_group(pid)
        self._backs = background
        self._in_background = ""
        self._threads_changed = False
        self._stopped = False
        self._idle = False

    def stop(self) -> None:
        """Stop all threads (SIGSTOP); it has no effect on one that is stopped already."""
        if not self._stopped and _state(self._stat) not in _STOPPED:
            self._stopped = True
            self._send(signal.SIGSTOP)

    @property
    def in_background(self) -> str:
        """Say by what it comes after all others: its control group, session or threads; empty: it does not."""
        return self._in_background

    @property
    def may_idle(self) -> bool:
        """Whether it leaves the cores to this process when it is idle, by the way in which it is in the background."""
        return self._shares or (self.background is not None and is_beside(self.background))

    def enter_background(self, threads: bool, about_to: Callable[[JobProcess], None] | None = None) -> None:
        """Have it come after all others until it is closed, by the first way that the kernel takes.

        Parameters
        ----------
        threads : bool
            Whether this process may use the idle class.
        about_to : callable, optional
            Told before each attempt, when `background` says what it is.

        Notes
        -----
        May take a second.
        """
        if not self._backs:
            return
        for way in (*self.ways, None):
            self.background, self._has_left = way, way is None
            if about_to is not None:
                about_to(self)
            if way is not None and way.enter(self._members):
                self._in_background = way.way.text
                break
        else:
            self._in_background = "threads" if threads else ""
        if threads and self._in_background != "control group":
            self._threads_changed = True
            self._schedule(os.SCHED_OTHER, os.SCHED_IDLE)

    def leave_background(self, patience_s: float = 0.0) -> bool:
        """Put its group back, once; False when the kernel has not taken that yet, and may when it is tried again."""
        if self.background is not None and not self._has_left:
            self._has_left = self.background.leave(patience_s)
        if self._has_left:
            self._in_background = ""
        return self._has_left

    def make_idle(self) -> None:
        """Let all threads run only when nobody else wants their cores (SCHED_IDLE); in the background they do."""
        if not (self._idle or self._in_background):
            self._idle = True
            self._schedule(os.SCHED_OTHER, os.SCHED_IDLE)

    def go_on(self) -> None:
        """Undo `make_idle` and `stop`."""
        if self._idle:
            self._idle = False
            self._schedule(os.SCHED_IDLE, os.SCHED_OTHER)
        if self._stopped:
            self._stopped = False
            self._send(signal.SIGCONT)

    def move(self, cores: Sequence[int]) -> None:
        """Let its threads run on these cores only."""
        for tid in self._threads():
            with contextlib.suppress(OSError):  # it has ended, or may not run there: it stays where it is
                os.sched_setaffinity(tid, cores)

    def close(self) -> None:
        """Undo what was done to it, and give its descriptors back; its group is `leave_background`'s. Twice is fine."""
        if self._pidfd < 0:
            return
        self.go_on()
        if self._threads_changed:
            self._schedule(os.SCHED_IDLE, os.SCHED_OTHER)
        os.close(self._pidfd)
        os.close(self._stat)
        self._pidfd = self._stat = -1

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):  # it has ended: its connection says so, too
            if self.group:
                os.killpg(self.pid, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)

    def _schedule(self, old: int, new: int) -> None:
        for _ in range(_PASSES):
            changed = False
            for tid in self._threads():
                with contextlib.suppress(OSError):  # it has ended
                    if os.sched_getscheduler(tid) == old:
                        os.sched_setscheduler(tid, new, os.sched_param(0))
                        changed = True
            if not changed:
                return

    def _threads(self) -> Iterator[int]:
        for pid in self._members():
            with contextlib.suppress(OSError):
                yield from [int(name) for name in os.listdir(f"/proc/{pid}/task")]

    def _members(self) -> list[int]:
        if not self.group:
            return [self.pid]
        return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _leader(name) == self.pid]


def find_process(pid: int, peer: Peer, *, background: bool = False) -> JobProcess | None:
    """Find the process that a client names as its job's; None: the server cannot hold it up.

    Raises
    ------
    InvalidRequest
        When there is no such process.
    PermissionDenied
        When it is not the client's.
    """
    if (
        pid in (0, os.getpid()) or peer.pid == 0
    ):  # inside the server's own process, or in another pid namespace
        return None
    if pid != peer.pid and peer.uid not in (0, _owner(pid)):
        raise PermissionDenied(f"process {pid} is not one of user {peer.uid}, who asks for the lease")
    try:
        os.kill(pid, 0)
        group = os.getpgid(pid) == pid and os.getpgrp() != pid
    except PermissionError:
        return None
    except OSError as error:
        raise InvalidRequest(f"process {pid} cannot be held: {error.strerror}; give a running one") from None
    return JobProcess(pid, group, background)


def can_idle() -> bool:
    """Whether this process may put a thread into the idle class and take it out again."""
    possible = False

    def attempt() -> None:
        nonlocal possible
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            possible = True

    thread = threading.Thread(target=attempt, name="polymux-idle-attempt")
    thread.start()
    thread.join()
    return possible


def _owner(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError as error:
        raise InvalidRequest(f"process {pid} cannot be held: {error.strerror}; give a running one") from None


def _state(stat: int) -> str:
    """Say what a process does, as one letter; empty when it has ended."""
    try:
        return os.pread(stat, 1024, 0).rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def _leader(pid: str) -> int:
    """Find the leader of a process's group; -1 when the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read(1024).rpartition(b")")[2].split()[2])
    except (OSError, IndexError):
        return -1
