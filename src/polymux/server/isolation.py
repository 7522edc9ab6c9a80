"""Isolated kernels on one stream: one worker process per session, made ready without holding up other queues."""

from __future__ import annotations

import threading
from collections.abc import Callable

from polymux.core.status import TaskStatus
from polymux.device.cores import allowed_cores, bind_thread
from polymux.device.protocol import LaunchError
from polymux.segment import Worker
from polymux.server.arguments import Ref
from polymux.server.kernels import Isolated
from polymux.server.session import Session
from polymux.server.started import BoundQueue, Ready
from polymux.server.worker_process import WorkerProcess

Place = tuple[str, int, tuple[int, ...] | None]


class Isolation:
    """What one accelerator thread needs to run kernels in worker processes.

    Parameters
    ----------
    stream : str
        The stream's id.
    place : tuple
        See `worker_main.Place`.
    worker : Worker
        The accelerator thread's; told when a queue may go on.
    """

    def __init__(self, stream: str, place: Place, worker: Worker) -> None:
        self._stream = stream
        self._place = place
        self._worker = worker

    def is_ready(self, session: Session, ready: Ready) -> bool:
        """Whether the session's process has the kernel."""
        process = session.workers.get(self._stream)
        return process is not None and process.is_ready(ready.kernel.serial)

    def make_ready(self, bound: BoundQueue, ready: Ready) -> None:
        """Start the process and define the kernel in a thread; the queue, which is on hold, goes on afterwards."""
        threading.Thread(
            target=self._make_ready,
            args=(bound, ready),
            name=f"polymux-worker-start-{bound.queue.session.id}",
            daemon=True,
        ).start()

    def prepare(self, session: Session, serial: int, source: Isolated) -> None:
        """Start the process and define a kernel now; from any thread.

        Raises
        ------
        LaunchError
            If it cannot be started or the kernel cannot be loaded.
        """
        bind_thread(allowed_cores())  # not one share's: the process counts the device's units itself
        process = session.workers.setdefault(self._stream, WorkerProcess(session, self._place))
        if session.ended:
            process.end()
        process.define(serial, source)

    def run(
        self, session: Session, ready: Ready, refs: list[Ref], scalars: dict[str, float | int | bool]
    ) -> list[tuple[int, ...]] | None:
        """Run a kernel that is ready.

        Raises
        ------
        LaunchError
            KERNEL_CRASHED, or the kernel's failure.
        """
        process = session.workers.get(self._stream)
        if process is None:
            raise LaunchError(TaskStatus.CANCELLED, "the session has ended")
        return process.run(ready.kernel.serial, refs, scalars)

    def _make_ready(self, bound: BoundQueue, ready: Ready) -> None:
        queue = bound.queue
        code, message = _outcome(lambda: self._define(queue.session, ready))
        if code is TaskStatus.OK:
            self._worker.resume(queue.id)
        else:
            name = ready.kernel.spec.name
            self._worker.fail_head(queue.id, code, f"kernel {name!r} on {self._stream}: {message}")

    def _define(self, session: Session, ready: Ready) -> None:
        assert ready.isolated is not None
        self.prepare(session, ready.kernel.serial, ready.isolated)


def _outcome(work: Callable[[], None]) -> tuple[TaskStatus, str]:
    """Run something; the exception is not kept, since its traceback keeps a session alive."""
    try:
        work()
    except LaunchError as error:
        return error.code, error.message
    except Exception as error:  # the queue must hear of it, whatever it is
        return TaskStatus.KERNEL_FAILED, f"{type(error).__name__}: {error}"
    return TaskStatus.OK, ""
