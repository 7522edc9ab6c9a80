"""Ends the tasks of queues that no device may run: each gets the status and the reason at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from polymux.core.status import TaskStatus
from polymux.segment import SegmentError, Worker
from polymux.server.accounting import NO_DEVICE, Accounts
from polymux.server.session import TaskQueue


class Refusal:
    """A thread that takes tasks only to complete them with an error.

    Parameters
    ----------
    released : callable
        Told when it has let go of a queue.
    accounts : Accounts
        Where its tasks are counted, as ended without a device.
    """

    def __init__(self, released: Callable[[TaskQueue], None], accounts: Accounts) -> None:
        self.worker = Worker(0, None, spin_ns=0)
        self._accounts = accounts
        accounts.watch(NO_DEVICE, self.worker.stats)
        self._released = released
        self._reasons: dict[str, tuple[TaskStatus, str]] = {}
        self._queues: dict[str, TaskQueue] = {}
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="polymux-refusal", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self._ending = True
        self.worker.wake()
        self._thread.join()

    def holds(self, queue: TaskQueue) -> bool:
        """Whether it has a queue."""
        return queue.id in self._queues

    def take(self, queue: TaskQueue, status: TaskStatus, message: str) -> None:
        """Complete the tasks of a queue, present and future, with a status."""
        held = queue.id in self._queues
        self._queues[queue.id], self._reasons[queue.id] = queue, (status, message)
        if held:
            return
        try:
            self.worker.bind(queue.session.segment, queue.index, queue.id, 0, False)
        except SegmentError:  # its ring is gone: nobody waits for its tasks
            del self._queues[queue.id], self._reasons[queue.id]

    def let_go(self, queue: TaskQueue) -> None:
        """Give a queue back at the next task boundary; `released` is called then."""
        self.worker.unbind(queue.id)

    def _run(self) -> None:
        while not self._turn():
            pass

    def _turn(self) -> bool:
        kind, value = self.worker.next()
        if kind == "task":
            status, message = self._reasons[value.queue]
            self.worker.complete(value, status, message)
        elif kind == "released":
            queue_id, *counts = value
            queue = self._queues.pop(queue_id)
            del self._reasons[queue_id]
            self._accounts.ran(queue_id, NO_DEVICE, *counts)
            self._released(queue)
        return kind == "woken" and self._ending
