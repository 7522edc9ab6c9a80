"""Refuses decisions that must not be carried out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from polymux.core.decision import (
    Answer,
    Bind,
    Decision,
    FailAll,
    FailHead,
    Migrate,
    Reject,
    Revoke,
    Stay,
    WakeAt,
)
from polymux.core.errors import BadDecision
from polymux.core.event import Event, HomePossible, KernelMissing
from polymux.core.ids import DeviceId, QueueId
from polymux.core.snapshot import QueueState, QueueView
from polymux.core.status import TaskStatus
from polymux.sched.state import State


def check(state: State, event: Event, decisions: Sequence[Decision], now: int) -> None:
    """Check all decisions that a policy made about one event, before any is carried out.

    Parameters
    ----------
    state : State
        With the event folded in.
    event : Event
        The one that the policy was asked about.
    decisions : sequence of Decision
    now : int, ns

    Raises
    ------
    BadDecision
        For the first one that must not be carried out, or when the head task that the event holds gets no answer.
    """
    decided: set[QueueId] = set()
    for decision in decisions:
        queue: QueueId | None = getattr(decision, "queue", None)
        problem = _problem(state, event, decision, now)
        if problem is None and queue in decided:
            problem = "a second decision about the same queue"
        if problem is not None:
            about = queue if queue is not None else getattr(event, "queue", None)
            raise BadDecision(decision, problem, () if about is None else state.story(about))
        if queue is not None:
            decided.add(queue)
    if isinstance(event, KernelMissing | HomePossible) and event.queue not in decided:
        raise BadDecision(event, "the head task is held and got no answer", state.story(event.queue))


def _problem(state: State, event: Event, decision: Decision, now: int) -> str | None:
    if isinstance(decision, WakeAt):
        return None if decision.at_ns > now else f"the time is not after {now} ns"
    if isinstance(decision, Answer):
        return "policies answer no requests"
    queue = state.queues.get(decision.queue)
    if queue is None:
        return "no such queue is open"
    held = event if isinstance(event, KernelMissing | HomePossible) and event.queue == queue.id else None
    problem: str | None
    match decision:
        case Bind():
            problem = _bind_problem(state, queue, decision)
        case FailAll():
            problem = _fail_all_problem(state, queue, decision)
        case Reject():
            problem = None if queue.id == state.opened else "this event opened no such queue"
        case Migrate():
            problem = _not_bound(queue) or _migrate_problem(state, queue, decision, held)
        case Revoke():
            problem = _not_bound(queue)
        case Stay():
            problem = None if held is not None else "nothing was asked about this queue"
        case FailHead():
            missing = isinstance(held, KernelMissing)
            problem = _ok_is_no_failure(decision.status) if missing else "its head misses no kernel"
        case _:
            assert_never(decision)
    return problem


def _bind_problem(state: State, queue: QueueView, decision: Bind) -> str | None:
    if queue.state is not QueueState.WAITING:
        return f"the queue is {queue.state.value}" + (f" at {queue.stream}" if queue.stream else "")
    stream = state.streams.get(decision.stream)
    if stream is None:
        return f"no such stream works; there are {', '.join(state.streams) or 'none'}"
    if queue.target is not None and stream.device != queue.target:
        return f"the queue is moving to {queue.target}"
    return _pin_problem(queue, stream.device)


def _fail_all_problem(state: State, queue: QueueView, decision: FailAll) -> str | None:
    if queue.state is not QueueState.WAITING:
        return f"the queue is {queue.state.value}"
    usable = [s.id for s in state.streams.values() if _pin_problem(queue, s.device) is None]
    if usable:
        return f"the queue could be bound to {', '.join(usable)}"
    return _ok_is_no_failure(decision.status)


def _migrate_problem(
    state: State, queue: QueueView, decision: Migrate, held: KernelMissing | HomePossible | None
) -> str | None:
    device = state.devices.get(decision.device)
    if device is None or device.lost is not None:
        return "no such device works"
    if decision.device == queue.device:
        return "the queue is there already"
    if isinstance(held, KernelMissing) and decision.device not in held.devices:
        return f"that device has no implementation of kernel {held.kernel}"
    if isinstance(held, HomePossible) and decision.device != queue.home:
        return f"that device is not the queue's home, which is {queue.home}"
    return _pin_problem(queue, decision.device)


def _pin_problem(queue: QueueView, device: DeviceId) -> str | None:
    return f"the queue is pinned to {queue.pinned}" if queue.pinned not in (None, device) else None


def _not_bound(queue: QueueView) -> str | None:
    return None if queue.state is QueueState.BOUND else f"the queue is {queue.state.value}, not bound"


def _ok_is_no_failure(status: TaskStatus) -> str | None:
    return "OK is no failure" if status == TaskStatus.OK else None
