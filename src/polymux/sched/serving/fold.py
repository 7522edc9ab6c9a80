"""What an event changes in the state of the engine of requests, before the policy is asked."""

from __future__ import annotations

from collections import deque

from polymux.core.errors import InvalidRequest
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
from polymux.core.serving.model import RequestId
from polymux.core.serving.view import DeviceState, ModelState
from polymux.sched.serving.state import ServingState, find_startable

_DRIFT_GAIN = 0.25
"""How much one batch moves the drift of its model towards what it took."""


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
            _cancel(state, state.model(name), request)
        case RequestsArrived():
            raise AssertionError("unreachable: `arrive` has a way of its own for them")


def _fold_model(
    state: ServingState, event: ModelAdded | ModelRemoved, decisions: list[ServingDecision]
) -> None:
    models = state.view.models
    if isinstance(event, ModelAdded):
        known = models.get(event.model.name)
        if known is None:
            state.models_made += 1
            models[event.model.name] = ModelState(event.model, state.models_made)
        else:
            known.model = event.model
        return
    gone = state.model(event.model)
    del models[event.model]
    state.view.waiting.pop(event.model, None)
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
    for batch in device.running.values():  # their ends may come late, or never: nobody waits for them
        known = view.models.get(batch.model)
        if known is not None and known.running.pop(batch.id, None) is not None:
            known.failed += batch.requests
    device.running.clear()


def _cancel(state: ServingState, model: ModelState, request: RequestId) -> None:
    kept = deque(other for other in model.waiting if other.id != request)
    if len(kept) != len(model.waiting):
        model.waiting = kept
        model.waiting_items = sum(other.items for other in kept)
        if not kept:
            del state.view.waiting[model.model.name]


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
