"""What becomes of the tasks in hand when something happens in an accelerator thread that must not: none waits on.

The thread goes on. What fails again and again makes the device count as lost, and then it is this thread that lets the
device's queues go, to be bound elsewhere.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from polymux.core.status import TaskStatus
from polymux.segment import Worker
from polymux.server.execution import Execution
from polymux.server.health import Health
from polymux.server.started import BoundQueue, Held, Started

PAUSE_S = 0.02
"""Between two failures of a thread whose device is lost already: it has nothing to do but to let go."""


def rescue(
    error: BaseException,
    stream: str,
    worker: Worker,
    execution: Execution,
    health: Health,
    bound: Iterable[BoundQueue],
    under_way: deque[Started],
) -> None:
    """End all tasks in hand as failed and keep nothing of them; to be called in the thread.

    Parameters
    ----------
    error : BaseException
        What happened.
    stream : str
        The thread's.
    worker, execution, health
        Of the thread and its device.
    bound : iterable of BoundQueue
        The queues that are bound there.
    under_way : deque of Started
        Tasks that have started; empty afterwards.
    """
    traceback.print_exception(error)
    message = f"the thread of {stream} failed: {type(error).__name__}: {error}"
    held: dict[int, Held] = {}
    for started in under_way:
        if started.launch is not None:
            with suppress(BaseException):  # how it ends is of no interest, but that nothing runs any more
                started.launch.wait()
        if started.held is not None:
            held[id(started.held)] = started.held
    under_way.clear()
    for queue in bound:
        for ready in queue.ready.values():
            held |= {id(each): each for each in ready.held.values()}
        queue.ready.clear()
        queue.under_way = 0
    try:
        execution.abandon(held)
    except BaseException as another:
        traceback.print_exception(another)
    worker.fail_in_hand(TaskStatus.DEVICE_FAILED, message)
    if health.lost is not None:
        time.sleep(PAUSE_S)
    health.failed(message)
