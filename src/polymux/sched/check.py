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
    Prepare,
    Reject,
    Revoke,
    Stay,
    WakeAt,
    Weigh,
)
from polymux.core.errors import BadDecision
from polymux.core.event import MAX_WEIGHT, DeviceWished, Event, HeldHead, HomePossible, KernelMissing
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
    held = held_queue(state, event)
    if held is not None and held.id not in decided:
        raise BadDecision(event, "the head task is held and got no answer", state.story(held.id))


def held_queue(state: State, event: Event) -> QueueView | None:
    """Find the queue whose thread asks with `event` where its head task is to run; None: it asks nothing."""
    queue = state.queues.get(event.queue) if isinstance(event, HeldHead) else None
    return queue if queue is not None and queue.state is QueueState.HELD else None


def _problem(state: State, event: Event, decision: Decision, now: int) -> str | None:
    if isinstance(decision, WakeAt):
        return None if decision.at_ns > now else f"the time is not after {now} ns"
    if isinstance(decision, Answer | Prepare):
        return "policies answer no requests and prepare nothing"
    queue = state.queues.get(decision.queue)
    if queue is None:
        return "no such queue is open"
    held = event if isinstance(event, HeldHead) and queue.state is QueueState.HELD else None
    match decision:
        case Bind():
            return _weight_problem(decision.weight) or _bind_problem(state, queue, decision, held)
        case Reject():
            fresh = queue.id == state.opened and queue.state is QueueState.WAITING
            return None if fresh else "this event opened no such queue that waits"
        case Stay() | FailHead():
            return _held_head_problem(decision, held)
        case FailAll():
            return _fail_all_problem(state, queue, decision)
        case Migrate() | Revoke() | Weigh():
            return _bound_queue_problem(state, queue, decision, now)
        case _:
            assert_never(decision)


def _held_head_problem(decision: Stay | FailHead, held: HeldHead | None) -> str | None:
    if isinstance(decision, Stay):
        return None if held is not None else "nothing was asked about this queue"
    missing = isinstance(held, KernelMissing)
    return _ok_is_no_failure(decision.status) if missing else "its head misses no kernel"


def _bound_queue_problem(
    state: State, queue: QueueView, decision: Migrate | Revoke | Weigh, now: int
) -> str | None:
    able = queue.drained if isinstance(decision, Weigh) else queue.state is QueueState.BOUND
    if not able:
        return f"the queue is {queue.state.value}, not bound"
    if isinstance(decision, Weigh):
        return _weight_problem(decision.weight)
    if queue.pinned_stream is not None:
        return f"the queue is pinned to stream {queue.pinned_stream}"
    return _migrate_problem(state, queue, decision, now) if isinstance(decision, Migrate) else None


def _bind_problem(state: State, queue: QueueView, decision: Bind, held: HeldHead | None) -> str | None:
    if held is None and queue.state is not QueueState.WAITING:
        return f"the queue is {queue.state.value}" + (f" at {queue.stream}" if queue.stream else "")
    stream = state.stream(decision.stream)
    if stream is None:
        return f"no such stream works; there are {', '.join(state.streams) or 'none'}"
    if queue.target is not None and stream.device != queue.target:
        return f"the queue is moving to {queue.target}"
    problem = _held_problem(queue, stream.device, held) or _pin_problem(queue, stream.device)
    if problem is None and queue.pinned_stream not in (None, stream.id):
        return f"the queue is pinned to stream {queue.pinned_stream}"
    if problem is None and stream.id in state.parts and queue.pinned_stream is None:
        return f"{stream.id} is a part of another stream and takes only queues that are pinned to it"
    return problem


def _held_problem(queue: QueueView, device: DeviceId, held: HeldHead | None) -> str | None:
    match held:
        case KernelMissing():
            there = device in held.devices
            return None if there else f"{device} has no implementation of kernel {held.kernel}"
        case HomePossible():
            there = device in (queue.device, queue.home)
            return None if there else f"{device} is not the queue's home, which is {queue.home}"
        case DeviceWished():
            there = device in (queue.device, held.device)
            return None if there else f"the head task wishes for {held.device}"
    return None


def _fail_all_problem(state: State, queue: QueueView, decision: FailAll) -> str | None:
    if queue.state is not QueueState.WAITING:
        return f"the queue is {queue.state.value}"
    usable = [
        stream.id
        for stream in state.streams.values()
        if _pin_problem(queue, stream.device) is None and queue.fits(state.devices[stream.device].spec)
    ]
    if usable:
        return f"the queue could be bound to {', '.join(usable)}"
    return _ok_is_no_failure(decision.status)


def _migrate_problem(state: State, queue: QueueView, decision: Migrate, now: int) -> str | None:
    device = state.devices.get(decision.device)
    if device is None or device.lost is not None:
        return "no such device works"
    if decision.device == queue.device:
        return "the queue is there already"
    if queue.barred.get(decision.device, now) > now:
        return "that device could not take the queue's data a moment ago; QueueView.barred says until when"
    return _pin_problem(queue, decision.device)


def _pin_problem(queue: QueueView, device: DeviceId) -> str | None:
    return f"the queue is pinned to {queue.pinned}" if queue.pinned not in (None, device) else None


def _weight_problem(weight: int) -> str | None:
    return None if 1 <= weight <= MAX_WEIGHT else f"the weight is not from 1 to {MAX_WEIGHT}"


def _ok_is_no_failure(status: TaskStatus) -> str | None:
    return "OK is no failure" if status == TaskStatus.OK else None
