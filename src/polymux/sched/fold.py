"""What each event changes, and what follows from it whatever the policy."""

from __future__ import annotations

from itertools import islice
from types import MappingProxyType

from polymux.core.decision import Answer, Decision, Prepare, Reject, Revoke
from polymux.core.errors import InvalidRequest
from polymux.core.event import (
    DeviceAdded,
    DeviceLost,
    DeviceWished,
    Event,
    HeldHead,
    HomePossible,
    KernelMissing,
    LoadReported,
    MigrateRequested,
    QueueClosed,
    QueueOpened,
    QueuePrepared,
    QueueReleased,
)
from polymux.core.ids import DeviceId, QueueId
from polymux.core.snapshot import QueueState, QueueView
from polymux.sched.state import State

SOME = 8
"""Queues that an error message lists."""


BARRED_NS = 1_000_000_000
"""For so long no policy may move a queue to a device that could not take its data."""


def fold(state: State, event: Event, now: int) -> list[Decision]:
    """Change `state` by `event`, which happened at `now` (ns).

    Returns
    -------
    list of Decision
        What follows from the event whatever the policy.

    Raises
    ------
    InvalidRequest
        For an event that cannot be; nothing changes then.
    """
    match event:
        case QueueOpened():
            return _queue_opened(state, event)
        case QueueClosed():
            return _queue_closed(state, event)
        case QueueReleased():
            return _queue_released(state, event.queue)
        case KernelMissing() | HomePossible() | DeviceWished():
            return _head_held(state, event)
        case MigrateRequested():
            return _migrate_requested(state, event)
        case QueuePrepared():
            return _queue_prepared(state, event, now)
        case DeviceAdded():
            _device_added(state, event)
        case DeviceLost():
            return _device_lost(state, event)
        case LoadReported():
            state.report_loads(event)
    return []


def _queue_opened(state: State, event: QueueOpened) -> list[Decision]:
    queue = state.queues.get(event.queue)
    if queue is not None and (queue.state is not QueueState.CLOSING or event.queue in state.reopened):
        raise InvalidRequest(f"queue {event.queue!r} is open already; close it before opening it again")
    problem = _pin_problem(state, event)
    if problem is not None:
        return [Reject(event.queue, problem, reason="its device does not work")]
    if queue is not None:  # its accelerator thread still holds the ring of the one that was closed
        state.reopened[event.queue] = event
        return []
    state.open(event)
    return []


def _queue_closed(state: State, event: QueueClosed) -> list[Decision]:
    state.reopened.pop(event.queue, None)
    queue = state.queues.get(event.queue)
    if queue is None or queue.state is QueueState.CLOSING:
        return []
    answers = answer(state, queue.id, False, f"queue {queue.id} was closed before it arrived")
    if queue.state in (QueueState.WAITING, QueueState.STRANDED):
        state.forget(queue.id)
        return answers
    state.put(queue._replace(state=QueueState.CLOSING, target=None))
    if queue.state is QueueState.REVOKING:
        return answers
    return [Revoke(queue.id, reason="its application closed it"), *answers]


def _queue_released(state: State, name: QueueId) -> list[Decision]:
    queue = state.queues.get(name)
    if queue is None or queue.state in (QueueState.WAITING, QueueState.STRANDED):
        return []
    if queue.stream is not None:
        state.vacate(queue.stream, queue)
    if queue.state is QueueState.CLOSING:
        state.forget(queue.id)
        reopened = state.reopened.pop(queue.id, None)
        return _queue_opened(state, reopened) if reopened is not None else []
    # let go of without being asked: it goes back to where it was
    target = queue.device if queue.state is QueueState.BOUND else queue.target
    state.put(queue._replace(state=QueueState.WAITING, stream=None, device=None, target=target))
    return []


def _head_held(state: State, event: HeldHead) -> list[Decision]:
    queue = state.queues.get(event.queue)
    if queue is None or queue.state is not QueueState.BOUND or queue.stream is None:
        return _queue_released(
            state, event.queue
        )  # it moves or ends anyway; the head is looked at where it goes
    state.vacate(queue.stream, queue)
    chances, credit_ns = queue.chances, queue.credit_ns
    if isinstance(event, HomePossible) and queue.home is not None:
        chances, credit_ns = chances + 1, max(0, credit_ns + (event.gain_ns or 0))
    state.put(queue._replace(state=QueueState.HELD, chances=chances, credit_ns=credit_ns))
    return []


def _migrate_requested(state: State, event: MigrateRequested) -> list[Decision]:
    queue = state.queues.get(event.queue)
    problem = _migrate_problem(state, event, queue)
    if queue is None or problem is not None:
        return [Answer(event.request, False, problem or "", reason="it cannot be carried out")]
    stays = queue._replace(home=None, chances=0, credit_ns=0, returned_ns=None, stays_ns=())
    if queue.drained and queue.device == event.device:
        called_back = answer(
            state, queue.id, False, f"a later request keeps queue {queue.id} on {event.device}"
        )
        state.put(stays._replace(state=QueueState.BOUND, target=None))
        message = f"queue {queue.id} runs on {event.device} already"
        return [*called_back, Answer(event.request, True, message, reason="it is there")]
    answers: list[Decision] = []
    if queue.target != event.device:
        answers = answer(state, queue.id, False, f"a later request moves queue {queue.id} to {event.device}")
    state.requests.setdefault(queue.id, []).append(event.request)
    if queue.drained:
        if queue.target == event.device:
            return answers
        state.put(queue._replace(state=QueueState.PREPARING, target=event.device))
        return [Prepare(queue.id, event.device, reason=f"it was asked to move to {event.device}"), *answers]
    moving = stays._replace(target=event.device)
    if queue.state is QueueState.STRANDED:
        moving = moving._replace(state=QueueState.WAITING)
    state.put(moving)
    return answers


def _queue_prepared(state: State, event: QueuePrepared, now: int) -> list[Decision]:
    queue = state.queues.get(event.queue)
    if queue is None or queue.state is not QueueState.PREPARING or queue.target != event.device:
        return []
    if event.problem is not None:
        still = {device: until for device, until in queue.barred.items() if until > now}
        barred = MappingProxyType({**still, event.device: now + BARRED_NS})
        state.put(queue._replace(state=QueueState.BOUND, target=None, barred=barred))
        return answer(state, queue.id, False, f"queue {queue.id} stays on {queue.device}: {event.problem}")
    moving = queue._replace(
        state=QueueState.REVOKING,
        home=None,
        chances=0,
        credit_ns=0,
        returned_ns=None,
        stays_ns=(),
    )
    state.put(moving)
    return [Revoke(queue.id, reason=f"it moves to {event.device}, where its data are")]


def _device_added(state: State, event: DeviceAdded) -> None:
    state.add_device(event)
    for queue in list(state.queues.values()):
        if queue.state is QueueState.STRANDED and queue.pinned in (None, event.spec.id):
            state.put(queue._replace(state=QueueState.WAITING))


def _device_lost(state: State, event: DeviceLost) -> list[Decision]:
    device = state.devices.get(event.device)
    if device is None:
        devices = state.view().describe_devices()
        raise InvalidRequest(f"device {event.device!r}, reported lost, was never added; devices: {devices}")
    if device.lost is not None:  # each of its threads may notice
        return []
    state.lose_device(event.device, event.reason)
    decisions: list[Decision] = []
    why = f"device {event.device} was lost: {event.reason}"
    for queue in list(state.queues.values()):
        if queue.target == event.device:
            decisions += answer(state, queue.id, False, why)
            stays = queue.state is QueueState.PREPARING
            state.put(queue._replace(state=QueueState.BOUND if stays else queue.state, target=None))
    for queue in list(state.queues.values()):
        if queue.device == event.device:
            decisions += [Revoke(queue.id, reason=why)] if queue.drained else []
            then = QueueState.REVOKING if queue.drained else queue.state
            state.put(queue._replace(state=then, stream=None, device=None))
    return decisions


def _device_problem(state: State, device: DeviceId) -> str | None:
    view = state.devices.get(device)
    if view is not None and view.lost is None:
        return None
    what = "is unknown" if view is None else "was lost"
    return f"device {device!r} {what}; devices: {state.view().describe_devices()}"


def _pin_problem(state: State, event: QueueOpened) -> str | None:
    problem = None if event.pinned is None else _device_problem(state, event.pinned)
    if problem is None and event.pinned_stream is not None:
        stream = state.stream(event.pinned_stream)
        if stream is None or stream.device != event.pinned:
            problem = f"{event.pinned_stream!r} is no stream of {event.pinned!r}"
    if problem is None:
        return None
    return f"the queue cannot be pinned: {problem}. Pin it to one that works, or to none"


def _migrate_problem(state: State, event: MigrateRequested, queue: QueueView | None) -> str | None:
    if queue is None or queue.state is QueueState.CLOSING:
        there = (q.id for q in state.queues.values() if q.state is not QueueState.CLOSING)
        some = list(islice(there, SOME + 1))
        names = ", ".join(some[:SOME]) + (", ..." if len(some) > SOME else "")
        return f"queue {event.queue!r} is not open; open queues: {names or 'none'}"
    if queue.pinned not in (None, event.device):
        where = queue.pinned_stream or queue.pinned
        return f"queue {queue.id} is pinned to {where}; only a queue without a pin can move"
    problem = _device_problem(state, event.device)
    if problem is None and not queue.fits(state.devices[event.device].spec):
        has_nbytes = state.devices[event.device].spec.memory_nbytes
        return (
            f"queue {queue.id} was opened for {queue.memory_nbytes} bytes of data, {event.device} has {has_nbytes};"
            " move it to a larger device"
        )
    return problem


def answer(state: State, queue: QueueId, ok: bool, message: str) -> list[Decision]:
    """Answer all requests to move `queue`."""
    return [Answer(request, ok, message, reason=message) for request in state.requests.pop(queue, ())]
