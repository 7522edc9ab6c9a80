"""Runs an unchanged program under a lease: the operating system holds it up while somebody else needs the device."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from polymux.client.client import Client
from polymux.client.lease import OUTER, Lease, wait_until_gone
from polymux.core.errors import InvalidRequest, LeaseLost, PolymuxError, ServerGone

NOT_FOUND, NOT_STARTED = 127, 126
"""Exit codes as shells have them."""
LEVELS = ("idle", "stop")
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_JOB_CONTROL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_TOLD_AFTER_S = 1.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.5, 10.0
_SECOND_S = 1.0
_PR_SET_PDEATHSIG = 1

Connect = Callable[[], Client]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LeaseWishes:
    """What the lease of a program is to be like; the meaning is that of `Client.lease`."""

    name: str
    priority: int | None = None
    weight: float | None = None
    memory_nbytes: int = 0
    device: str | None = None


class HeldCommand:
    """A program in a process group of its own, under a lease.

    Parameters
    ----------
    words : sequence of str
        The program and its arguments.
    connect : callable
        Connects to the server; called again when that has ended and another one runs.
    wishes : LeaseWishes
    say : callable
        Tells the user something.

    Notes
    -----
    Signals that ask this process to end or to do something are passed on. When the user suspends the program, the lease
    rests and this process is suspended as well. When the server is gone, the program goes on without a lease until
    there is a server again.
    """

    def __init__(self, words: Sequence[str], connect: Connect, wishes: LeaseWishes, say: Say) -> None:
        self._words = list(words)
        self._connect = connect
        self._wishes = wishes
        self._say = say
        self._lease: Lease | None = None
        self._ended = threading.Event()
        self._terminal = _own_terminal()

    def run(self) -> int:
        """Run the program.

        Returns
        -------
        int
            Its exit code; 128 plus the signal's number when a signal ended it, 127 when there is no such program, 126
            when it cannot be started.

        Raises
        ------
        PolymuxError
            When no lease can be had.
        """
        if shutil.which(self._words[0]) is None:
            self._say(f"{self._words[0]}: there is no such program")
            return NOT_FOUND
        child = _Child(self._words)
        try:
            client = self._connect()
            lease = self._open(client, child.pid)
            self._await_turn(lease)
            failure = child.begin(lease.job)
        except BaseException:
            child.give_up()
            raise
        if failure:
            child.give_up()
            client.close()
            self._say(f"{self._words[0]}: {os.strerror(failure)}")
            return NOT_STARTED
        self._give_terminal(child.pid)
        keeper = threading.Thread(target=self._keep, args=(client, child.pid), name="polymux-lease-keeper")
        keeper.daemon = True
        keeper.start()
        try:
            with _forwarding(child.pid):
                return self._await_end(child.pid)
        finally:
            self._ended.set()
            self._give_terminal(os.getpgrp())
            client.close()

    def _open(self, client: Client, pid: int) -> Lease:
        wishes = self._wishes
        self._lease = client.lease(
            wishes.name,
            priority=wishes.priority,
            weight=wishes.weight,
            memory_nbytes=wishes.memory_nbytes,
            device=wishes.device,
            levels=LEVELS,
            pid=pid,
        )
        return self._lease

    def _await_turn(self, lease: Lease) -> None:
        try:
            lease.wait(_TOLD_AFTER_S)
        except TimeoutError:
            self._say(f"{lease.job} waits for its turn; 'polymux status' shows who has the device")
            lease.wait()

    def _await_end(self, pid: int) -> int:
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED)
            if os.WIFEXITED(status):
                return os.WEXITSTATUS(status)
            if os.WIFSIGNALED(status):
                return 128 + os.WTERMSIG(status)
            if os.WSTOPSIG(status) in _JOB_CONTROL:
                self._suspend(pid)

    def _suspend(self, pid: int) -> None:
        """Be suspended with the program, and go on with it when its turn has come again."""
        lease = self._lease
        with contextlib.suppress(PolymuxError):
            if lease is not None:
                lease.idle()
        self._give_terminal(os.getpgrp())
        os.kill(os.getpid(), signal.SIGSTOP)
        with contextlib.suppress(PolymuxError):
            if lease is not None:
                lease.wait()
        self._give_terminal(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)

    def _keep(self, client: Client, pid: int) -> None:
        """Watch the server, and open another lease when it has come back; in a thread."""
        while not self._ended.is_set():
            if not wait_until_gone(client, _SECOND_S):
                continue
            if self._ended.is_set() or client.closed:
                return
            self._say("the server is gone; the program goes on without a lease until there is one again")
            found = self._find_server(pid)
            if found is None:
                return
            client = found

    def _find_server(self, pid: int) -> Client | None:
        delay_s = _FIRST_DELAY_S
        while not self._ended.wait(delay_s):
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
            try:
                client = self._connect()
            except PolymuxError:
                continue
            try:
                lease = self._open(client, pid)
                self._say(f"the server is back; the program is {lease.job} there")
                lease.wait()
                return client
            except ServerGone:
                continue
            except (InvalidRequest, LeaseLost) as error:
                self._say(f"no lease any more: {error}")
                client.close()
                return None
        return None

    def _give_terminal(self, group: int) -> None:
        if self._terminal is None:
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        try:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(self._terminal, group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Child:
    """A process in a group of its own that becomes the program when it is told to.

    Made while this process has no other threads that matter, before there is a connection.
    """

    def __init__(self, words: list[str]) -> None:
        start, self._start = os.pipe()
        self._failure, failure = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._start)
            os.close(self._failure)
            _become(words, start, failure, parent)
        with contextlib.suppress(OSError):  # it has done so itself
            os.setpgid(self.pid, self.pid)
        os.close(start)
        os.close(failure)

    def begin(self, job: str) -> int:
        """Let it become the program; returns the number of the error that prevents it, or 0."""
        os.write(self._start, job.encode() + b"\n")
        os.close(self._start)
        self._start = -1
        with os.fdopen(self._failure, "rb") as pipe:
            told = pipe.read()
        self._failure = -1
        return int(told or b"0")

    def give_up(self) -> None:
        """End it."""
        for fd in (self._start, self._failure):
            if fd >= 0:
                os.close(fd)
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _become(words: list[str], start: int, failure: int, parent: int) -> None:
    """Be the child: wait for the word, then run the program; never returns."""
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))  # not left behind without a lease
        for number in (*FORWARDED, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        job = b""
        while not job.endswith(b"\n"):
            read = os.read(start, 256)
            if not read or os.getppid() != parent:
                os._exit(NOT_FOUND)
            job += read
        os.execvpe(words[0], words, {**os.environ, OUTER: job.decode().strip()})
    except OSError as error:
        os.write(failure, str(error.errno).encode())
    finally:
        os._exit(NOT_STARTED)


def _own_terminal() -> int | None:
    """Find the terminal that this process reads from, if it is in its foreground."""
    try:
        return 0 if os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp() else None
    except OSError:
        return None


@contextlib.contextmanager
def _forwarding(group: int) -> Iterator[None]:
    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
