"""What each decision of a policy changes, and what the driver has to do for it."""

from __future__ import annotations

from dataclasses import replace

from polymux.core.decision import Bind, Decision, FailAll, Migrate, Reject, Revoke
from polymux.core.event import Event, HomePossible, KernelMissing
from polymux.core.snapshot import QueueState, QueueView
from polymux.sched.fold import answer
from polymux.sched.state import State

MAX_STAYS = 5
"""Stays at home that are remembered for each queue."""


def apply(state: State, event: Event, decision: Decision, now: int) -> list[Decision]:
    """Enter a checked decision about `event` into `state` and return what the driver is to do."""
    match decision:
        case Bind():
            return _bind(state, decision, now)
        case FailAll():
            queue = state.queues[decision.queue]
            state.put(replace(queue, state=QueueState.STRANDED, home=None))
        case Reject():
            state.forget(decision.queue)
        case Migrate():
            queue = _leave(event, state.queues[decision.queue], now)
            state.put(replace(queue, state=QueueState.REVOKING, target=decision.device))
            return [Revoke(queue.id, reason=f"it moves to {decision.device}: {decision.reason}")]
        case Revoke():
            queue = state.queues[decision.queue]
            state.put(replace(queue, state=QueueState.REVOKING))
    return [decision]


def _leave(event: Event, queue: QueueView, now: int) -> QueueView:
    """Note where a queue belongs that is about to move."""
    if isinstance(event, KernelMissing | HomePossible) and event.queue == queue.id:
        if queue.home is not None:
            return queue
        stays_ns = queue.stays_ns
        if queue.returned_ns is not None:
            stays_ns = (*stays_ns, now - queue.returned_ns)[-MAX_STAYS:]
        return replace(queue, home=queue.device, chances=0, credit_ns=0, returned_ns=None, stays_ns=stays_ns)
    return replace(queue, home=None, returned_ns=None, stays_ns=())


def _bind(state: State, decision: Bind, now: int) -> list[Decision]:
    queue = state.queues[decision.queue]
    device = state.streams[decision.stream].device
    if device == queue.home:
        queue = replace(queue, home=None, returned_ns=now)
    elif device != queue.target:
        queue = replace(queue, home=None, returned_ns=None, stays_ns=())
    state.put(replace(queue, state=QueueState.BOUND, stream=decision.stream, device=device, target=None))
    state.occupy(decision.stream)
    return [decision, *answer(state, queue.id, True, f"queue {queue.id} runs on {device}")]
