"""The tasks of queues that no device may run end at once and are counted."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

from polymux.core.status import TaskStatus
from polymux.server.accounting import NO_DEVICE, Account, Accounts
from polymux.server.refusal import Refusal
from tests.unit.segment.ring import Rings


def test_refused_tasks_are_failed_tasks_without_a_device() -> None:
    rings, accounts = Rings(), Accounts()
    accounts.opened(1, "heat")
    released: queue.SimpleQueue[Any] = queue.SimpleQueue()
    refusal = Refusal(released.put, accounts)
    session = SimpleNamespace(segment=rings.segment)
    task_queue: Any = SimpleNamespace(id="1.0", session=session, index=rings.indices[0])
    refusal.start()
    for _ in range(3):
        rings.submit()
    refusal.take(task_queue, TaskStatus.NO_DEVICE, "no device works")
    while rings.completed() < 3:
        pass
    refusal.let_go(task_queue)
    assert released.get(timeout=30) is task_queue
    refusal.end()
    account = accounts.table()["heat", NO_DEVICE]
    assert account == Account(3, 3, account.busy_ns, account.waiting_ns)
