"""Worker processes: where kernels run that must not be able to hurt the server.

One process per session and stream, started when the first such task comes. It gets the session's segment and a
socket, nothing else of the server; its user is the client's. When it dies, the task it ran fails, and the next one
starts another.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

from polymux.core.errors import PermissionDenied
from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError
from polymux.server.arguments import Ref
from polymux.server.connection import Peer
from polymux.server.kernels import Isolated
from polymux.server.session import Foreign, Session
from polymux.server.worker_channel import (
    MAX_DESCRIPTORS,
    ChannelClosedError,
    receive_answer,
    send_order,
)

_PASSED = ("PATH", "LANG", "LANGUAGE", "TZ", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_PASSED_PREFIXES = (
    "LC_",
    "PYTHON",
    "OCL_",
    "OPENCL_",
    "POCL_",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "CUDA_",
    "XDG_CACHE",
)


class WorkerProcess:
    """A process for one session's isolated kernels on one stream.

    Parameters
    ----------
    session : Session
    place : tuple
        Device request, index of the device among those it opens, units of the share; see `worker_main.Place`.
    """

    def __init__(self, session: Session, place: tuple[str, int, tuple[int, ...] | None]) -> None:
        self._session = session
        self._place = place
        self._conversation = threading.Lock()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lifeline = -1
        self._pidfd = -1
        self._defined: set[int] = set()
        self._foreign: dict[int, Foreign] = {}
        self._ended = False

    @property
    def pid(self) -> int | None:
        """Of the process, while one runs."""
        return None if self._process is None else self._process.pid

    def is_ready(self, serial: int) -> bool:
        """Whether the process runs, has this kernel defined and is not busy with loading another one."""
        return serial in self._defined and not self._conversation.locked()

    def define(self, serial: int, source: Isolated) -> None:
        """Start the process if none runs, and have it load a kernel; takes as long as that takes.

        Raises
        ------
        LaunchError
            If it cannot be started or the kernel cannot be loaded.
        """
        with self._conversation:
            if serial in self._defined:
                return
            if self._process is None:
                self._start()
            answer = self._ask(("define", serial, source))
            if answer.get("status") != TaskStatus.OK:
                raise _failure(answer)
            self._defined.add(serial)

    def forget(self, serial: int) -> None:
        """Have the process let go of a kernel, after the task that it runs now.

        Raises
        ------
        LaunchError
            If the process crashes meanwhile.
        """
        with self._conversation:
            if serial in self._defined:
                self._defined.discard(serial)
                self._ask(("forget", serial))

    def run(
        self, serial: int, refs: list[Ref], scalars: dict[str, float | int | bool]
    ) -> list[tuple[int, ...]] | None:
        """Run a defined kernel on the session's memory.

        Raises
        ------
        LaunchError
            KERNEL_CRASHED with the signal's name, or the kernel's failure.
        """
        with self._conversation:
            if serial not in self._defined:  # it has died since
                raise LaunchError(TaskStatus.KERNEL_CRASHED, "its worker process has just ended; try again")
            self._send_foreign()
            answer = self._ask(("run", serial, refs, scalars))
        if answer.get("status") != TaskStatus.OK:
            raise _failure(answer)
        shapes = answer.get("shapes")
        return None if shapes is None else [tuple(shape) for shape in shapes]

    def end(self) -> None:
        """Kill the process and whatever it has started; from any thread, also while it computes."""
        with self._lock:
            self._ended = True
            self._kill()

    def close(self) -> None:
        """Give back what a killed process leaves; waits for the thread that talks to it."""
        with self._conversation:
            self._close()

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.wait()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for fd in (self._lifeline, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._lifeline = self._pidfd = -1
        self._defined.clear()
        self._foreign.clear()

    def _start(self) -> None:
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        lifeline_end, lifeline = os.pipe()
        segment = self._session.segment
        fds = (theirs.fileno(), lifeline_end, segment.fd)
        names = ("--channel", "--lifeline", "--segment")
        command = [sys.executable, "-m", "polymux.server.worker_main"]
        for name, fd in zip(names, fds, strict=True):
            command += [name, str(fd)]
        command += ["--segment-nbytes", str(segment.nbytes)]
        command += ["--memory-nbytes", str(self._session.worker_nbytes)]
        try:
            with self._lock:
                if self._ended:
                    raise LaunchError(TaskStatus.CANCELLED, "the session has ended")
                self._process = subprocess.Popen(
                    command,
                    pass_fds=fds,
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    **identity(self._session.peer),
                )
                self._pidfd = os.pidfd_open(self._process.pid)
                self._channel, self._lifeline = channel, lifeline
        except BaseException as error:
            channel.close()
            os.close(lifeline)
            if isinstance(error, OSError | PermissionDenied):
                raise LaunchError(
                    TaskStatus.KERNEL_FAILED, f"its worker process cannot be started: {error}"
                ) from error
            raise
        finally:
            theirs.close()
            os.close(lifeline_end)
        self._order(self._place)

    def _ask(self, order: object) -> dict[str, Any]:
        self._order(order)
        assert self._channel is not None
        try:
            self._wait()
            return receive_answer(self._channel)
        except ChannelClosedError as error:
            raise self._crash(str(error)) from None

    def _order(self, order: object, descriptors: tuple[int, ...] = ()) -> None:
        assert self._channel is not None
        try:
            send_order(self._channel, order, descriptors)
        except ChannelClosedError as error:
            raise self._crash(str(error)) from None

    def _wait(self) -> None:
        """Wait for an answer or the process's end (a child of it may hold the channel open)."""
        assert self._channel is not None
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._pidfd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll()}
        if self._channel.fileno() not in ready:
            raise ChannelClosedError("the process has ended")

    def _send_foreign(self) -> None:
        """Tell the process which grants' pages lie under the segment, as far as that has changed."""
        gone, new = self._session.foreign_since(self._foreign)
        for foreign in gone:
            del self._foreign[foreign.slot]
            self._order(("own", foreign.offset))
        try:
            for at in range(0, len(new), MAX_DESCRIPTORS):
                some = new[at : at + MAX_DESCRIPTORS]
                ranges = [(foreign.offset, foreign.nbytes) for foreign in some]
                self._order(("foreign", ranges), tuple(foreign.fd for foreign in some))
        finally:
            for foreign in new:
                os.close(foreign.fd)
        self._foreign.update({foreign.slot: foreign for foreign in new})

    def _crash(self, what: str) -> LaunchError:
        self._await_end()
        with self._lock:
            self._kill()
            ended = self._ended
            process = self._process
        how = what if process is None else _how_it_ended(process.wait(), what)
        self._close()
        if ended:
            return LaunchError(TaskStatus.CANCELLED, "the session has ended")
        return LaunchError(
            TaskStatus.KERNEL_CRASHED, f"its worker process {how}; the next task starts a new one"
        )

    def _await_end(self) -> None:
        """Give a process that has closed its channel a moment to end by itself, so that its status says why."""
        if self._pidfd >= 0 and not self._ended:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            poller.poll(1000)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def identity(peer: Peer) -> dict[str, Any]:
    """Give the options of `subprocess` that make a process the client's user.

    Raises
    ------
    PermissionDenied
        If the server may not do that.
    """
    if peer.uid == os.getuid():
        return {}
    if os.getuid() != 0:
        raise PermissionDenied(
            f"the client is user {peer.uid}, the server is user {os.getuid()} and may not act for others;"
            " run the server as root, or as that user"
        )
    return {"user": peer.uid, "group": peer.gid, "extra_groups": []}


def environment() -> dict[str, str]:
    """Pass on what finds libraries and sets locales, and nothing that may be secret."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }


def _failure(answer: dict[str, Any]) -> LaunchError:
    try:
        code = TaskStatus(int(answer.get("status", TaskStatus.KERNEL_FAILED)))
    except (ValueError, TypeError):
        code = TaskStatus.KERNEL_FAILED
    return LaunchError(code, str(answer.get("message", "it failed without a message"))[:2000])


def _how_it_ended(returncode: int, what: str) -> str:
    if returncode < 0:
        try:
            name = signal.Signals(-returncode).name
        except ValueError:
            name = f"signal {-returncode}"
        return f"was killed by {name}"
    return f"ended with exit code {returncode} ({what})"
