"""What an event changes in the state of the engine of requests, before the policy is asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from polymux.core.errors import BadDecision, InvalidRequest
from polymux.core.serving.decision import RejectRequest, ServingDecision
from polymux.core.serving.event import (
    BatchEnded,
    InstanceFailed,
    InstanceReady,
    ModelAdded,
    ModelRemoved,
    RequestCancelled,
    RequestsArrived,
    ServingDeviceAdded,
    ServingDeviceLost,
    ServingEvent,
)
from polymux.core.serving.model import Request, RequestId
from polymux.core.serving.view import DeviceState, ModelState
from polymux.policy.serving.interface import ServingPolicy
from polymux.sched.serving.state import ServingState, find_startable

_DRIFT_GAIN = 0.25
"""How much one batch moves the drift of its model towards what it took."""

_RATE_WINDOW_NS = 500_000_000
"""Over which the arrivals of a model are counted for its rate."""


def arrive(
    state: ServingState,
    policy: ServingPolicy,
    requests: Sequence[Request],
    decisions: list[ServingDecision],
    now: int,
) -> int:
    """Let requests wait, or reject them where the policy does not admit them; return the time at the last of them.

    Raises
    ------
    BadDecision
        If the policy raised for one of them, which is rejected; the others are treated as always.
    """
    view = state.view
    models = view.models
    bad: BadDecision | None = None
    for request in requests:
        if request.arrival_ns > now:
            now = request.arrival_ns
        model = models.get(request.model)
        if model is None:
            decisions.append(RejectRequest(request, None, f"model {request.model!r} is not served"))
            continue
        model.arrived += 1
        if now >= model.window_start_ns + _RATE_WINDOW_NS:
            _measure_rate(model, now)
        model.window_requests += 1
        try:
            refused = policy.admit(view, request, now)
        except Exception as error:
            decisions.append(RejectRequest(request, None, "the scheduling policy failed, see the log"))
            model.refused += 1
            bad = BadDecision(request, f"the policy raised {error!r}")
            continue
        if refused is not None:
            model.refused += 1
            decisions.append(refused)
            continue
        model.admitted += 1
        waiting = model.waiting
        if waiting and waiting[-1].deadline_ns > request.deadline_ns:
            _insert(waiting, request)
        else:
            waiting.append(request)
        model.waiting_items += request.items
    if bad is not None:
        raise bad
    return state.advance(now)


def fold(state: ServingState, event: ServingEvent, decisions: list[ServingDecision], now: int) -> None:
    """Fold any other event in; what follows from it without the policy goes to `decisions`."""
    match event:
        case BatchEnded():
            _end(state, event, now)
        case ModelAdded() | ModelRemoved():
            _fold_model(state, event, decisions)
        case ServingDeviceAdded() | ServingDeviceLost():
            _fold_device(state, event)
        case InstanceReady(name, device_id, units):
            spec = state.device(device_id).spec
            if units not in spec.shares:
                raise InvalidRequest(
                    f"device {device_id} has no share of {units} units; it has {spec.shares}"
                )
            state.model(name).ready.setdefault(device_id, set()).add(units)
        case InstanceFailed(name, device_id, units, _):
            state.model(name).ready.get(device_id, set()).discard(units)
        case RequestCancelled(name, request):
            _cancel(state.model(name), request)
        case RequestsArrived():
            raise AssertionError("unreachable: arrivals have a way of their own")


def _fold_model(
    state: ServingState, event: ModelAdded | ModelRemoved, decisions: list[ServingDecision]
) -> None:
    models = state.view.models
    if isinstance(event, ModelAdded):
        known = models.get(event.model.name)
        if known is None:
            models[event.model.name] = ModelState(event.model)
        else:
            known.model = event.model
        return
    gone = state.model(event.model)
    del models[event.model]
    reason = f"model {event.model!r} is served no longer"
    decisions += [RejectRequest(request, None, reason) for request in gone.waiting]


def _fold_device(state: ServingState, event: ServingDeviceAdded | ServingDeviceLost) -> None:
    view = state.view
    if isinstance(event, ServingDeviceAdded):
        spec = event.device
        if spec.id in view.devices and view.devices[spec.id].lost is None:
            raise InvalidRequest(f"device {spec.id} is there already")
        view.devices[spec.id] = DeviceState(spec, spec.units, spec.shares)
        return
    device = state.device(event.device)
    device.lost, device.startable = event.reason, ()
    for model in view.models.values():
        model.ready.pop(event.device, None)


def _measure_rate(model: ModelState, now: int) -> None:
    if model.window_requests:
        rate = model.window_requests * 1e9 / (now - model.window_start_ns)
        model.rate_per_s = rate if not model.rate_per_s else (model.rate_per_s + rate) / 2
    model.window_start_ns, model.window_requests = now, 0


def _insert(waiting: deque[Request], request: Request) -> None:
    """Put a request before those with a later deadline."""
    index = len(waiting)
    while index and waiting[index - 1].deadline_ns > request.deadline_ns:
        index -= 1
    waiting.insert(index, request)


def _cancel(model: ModelState, request: RequestId) -> None:
    kept = deque(other for other in model.waiting if other.id != request)
    if len(kept) != len(model.waiting):
        model.waiting = kept
        model.waiting_items = sum(other.items for other in kept)


def _end(state: ServingState, event: BatchEnded, now: int) -> None:
    batch = state.batches.pop(event.batch, None)
    if batch is None:
        raise InvalidRequest(f"batch {event.batch} does not run")
    device = state.view.devices[batch.device]
    if device.running.pop(batch.id, None) is not None:  # a device that came back knows nothing of old batches
        device.free += batch.units
        device.startable = find_startable(device)
    model = state.view.models.get(batch.model)
    if model is None or model.running.pop(batch.id, None) is None:
        return
    took = now - batch.start_ns
    model.device_ns += took
    model.unit_ns += took * batch.units
    if event.failed:
        model.failed += batch.requests
        return
    model.answered += batch.requests
    if now > batch.deadline_ns:
        model.late += 1  # at least; the driver knows each request's own
    if batch.expected_ns:
        model.drift += _DRIFT_GAIN * (took * model.drift / batch.expected_ns - model.drift)
