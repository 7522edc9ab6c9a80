"""What each decision of a policy changes, and what the driver has to do for it."""

from __future__ import annotations

from polymux.core.decision import (
    Bind,
    Decision,
    FailAll,
    FailHead,
    Migrate,
    Prepare,
    Reject,
    Revoke,
    Stay,
    Weigh,
)
from polymux.core.event import DeviceWished, Event, HeldHead, KernelMissing
from polymux.core.ids import DeviceId, QueueId
from polymux.core.snapshot import QueueState, QueueView
from polymux.core.status import TaskStatus
from polymux.sched.fold import answer
from polymux.sched.state import State

MAX_STAYS = 5
"""Stays at home that are remembered for each queue."""


def apply(state: State, event: Event, decision: Decision, now: int) -> list[Decision]:
    """Enter a checked decision about `event` into `state` and return what the driver is to do."""
    match decision:
        case Bind():
            return _bind(state, event, decision, now)
        case Stay():
            return bind_back(state, event, decision.queue, decision.reason, now)
        case FailHead():
            return [decision, *bind_back(state, event, decision.queue, "it goes on with the next task", now)]
        case Weigh():
            state.put(state.queues[decision.queue]._replace(bound_weight=decision.weight))
        case FailAll():
            queue = state.queues[decision.queue]
            state.put(queue._replace(state=QueueState.STRANDED, home=None))
        case Reject():
            state.forget(decision.queue)
        case Migrate():
            queue = state.queues[decision.queue]
            state.put(queue._replace(state=QueueState.PREPARING, target=decision.device))
            return [Prepare(queue.id, decision.device, decision.reason)]
        case Revoke():
            queue = state.queues[decision.queue]
            state.put(queue._replace(state=QueueState.REVOKING))
    return [decision]


def place_pinned(state: State, event: Event, now: int) -> list[Decision]:
    """Do what leaves nothing to decide: queues that are pinned to a stream run there, or not at all."""
    waiting = [state.queues[name] for name in state.waiting]
    decisions = [_place_pinned(state, queue) for queue in waiting if queue.pinned_stream is not None]
    asking = state.queues.get(event.queue) if isinstance(event, HeldHead) else None
    if asking is not None and asking.pinned_stream is not None and asking.state is QueueState.HELD:
        decisions.append(_answer_pinned(event, asking))
    return [made for decision in decisions for made in apply(state, event, decision, now)]


def _place_pinned(state: State, queue: QueueView) -> Decision:
    stream = queue.pinned_stream
    assert stream is not None
    if state.stream(stream) is not None:
        return Bind(queue.id, stream, f"it is pinned to {stream}", queue.weight)
    message = (
        f"the queue is pinned to stream {stream}, which does not work; devices: {state.view().describe_devices()}."
        " Open a queue without a pin, or pinned to a stream that works"
    )
    return FailAll(queue.id, TaskStatus.NO_DEVICE, message, reason=f"{stream} does not work")


def _answer_pinned(event: Event, queue: QueueView) -> Decision:
    if not isinstance(event, KernelMissing) or queue.device in event.devices:
        return Stay(queue.id, reason=f"it is pinned to {queue.pinned_stream}")
    others = f"for {', '.join(event.devices)}" if event.devices else "for no device here"
    message = (
        f"kernel {event.kernel!r} has no implementation for {queue.device}, to stream {queue.pinned_stream} of which"
        f" the queue is pinned; it has one {others}. Submit it to a queue without a pin, or register an implementation"
    )
    return FailHead(queue.id, TaskStatus.NO_DEVICE, message, reason="its stream lacks the head's kernel")


def bind_back(state: State, event: Event, queue: QueueId, reason: str, now: int) -> list[Decision]:
    """Bind a queue whose head was held to the stream that let go of it."""
    view = state.queues[queue]
    assert view.stream is not None
    return _bind(state, event, Bind(queue, view.stream, reason, view.bound_weight), now)


def _bind(state: State, event: Event, decision: Bind, now: int) -> list[Decision]:
    queue = state.queues[decision.queue]
    stream, held = decision.stream, queue.state is QueueState.HELD
    view = state.stream(stream)
    assert view is not None
    device = view.device
    home, returned_ns, stays_ns = (
        _home(event, queue, device, now) if held else _home_when_placed(queue, device, now)
    )
    left = home is not None and queue.home is None
    bound = queue._replace(
        state=QueueState.BOUND,
        stream=stream,
        device=device,
        target=None,
        home=home,
        returned_ns=returned_ns,
        stays_ns=stays_ns,
        chances=0 if left else queue.chances,
        credit_ns=0 if left else queue.credit_ns,
        bound_weight=decision.weight,
        bound_ns=queue.bound_ns if stream == queue.stream else now,
    )
    state.put(bound)
    state.occupy(stream, bound, anew=not held or stream != queue.stream)
    if queue.id not in state.requests:
        return [decision]
    return [decision, *answer(state, queue.id, True, f"queue {queue.id} runs on {device}")]


Home = tuple[DeviceId | None, int | None, tuple[int, ...]]
"""A queue's `home`, `returned_ns` and `stays_ns`."""


def _home(event: Event, queue: QueueView, device: DeviceId, now: int) -> Home:
    """Note where a queue belongs whose head task sends it to `device`."""
    if device == queue.device:
        return queue.home, queue.returned_ns, queue.stays_ns
    if isinstance(event, DeviceWished):
        return None, None, ()
    if device == queue.home:
        return None, now, queue.stays_ns
    if queue.home is not None:
        return queue.home, queue.returned_ns, queue.stays_ns
    stays_ns = queue.stays_ns
    if queue.returned_ns is not None:
        stays_ns = (*stays_ns, now - queue.returned_ns)[-MAX_STAYS:]
    return queue.device, None, stays_ns


def _home_when_placed(queue: QueueView, device: DeviceId, now: int) -> Home:
    if device == queue.home:
        return None, now, queue.stays_ns
    if device == queue.target:
        return queue.home, queue.returned_ns, queue.stays_ns
    return None, None, ()
