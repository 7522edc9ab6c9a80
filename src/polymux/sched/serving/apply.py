"""Checks what a policy of requests decided, and changes the state by it."""

from __future__ import annotations

from itertools import islice

from polymux.core.errors import BadDecision
from polymux.core.serving.decision import (
    Dispatch,
    PrepareInstance,
    Refuse,
    RejectRequest,
    RetireInstance,
    Start,
)
from polymux.core.serving.model import BatchId
from polymux.core.serving.view import DeviceState, RunningBatch
from polymux.sched.serving.state import ServingState, find_startable, free_blocks


def start(state: ServingState, decision: Start, now: int) -> Dispatch:
    """Form the batch and note that it runs.

    Raises
    ------
    BadDecision
        If it cannot be; nothing changes.
    """
    view = state.view
    model = view.models.get(decision.model)
    device = view.devices.get(decision.device)
    if model is None or device is None:
        raise BadDecision(decision, "there is no such model or device")
    units = decision.units
    if units not in device.startable:
        raise BadDecision(decision, f"{units} units cannot be started there now, only {device.startable}", ())
    if units not in model.ready.get(device.spec.id, ()):
        raise BadDecision(decision, f"the model is not ready on {units} units there")
    waiting = model.waiting
    count = decision.requests
    if not 1 <= count <= len(waiting):
        raise BadDecision(decision, f"{count} requests; {len(waiting)} wait")
    requests = list(waiting) if count == len(waiting) else list(islice(waiting, count))
    each_one = model.waiting_items == len(waiting)
    items = count if each_one else sum([request.items for request in requests])
    most = model.max_batch(device.spec)
    if items > most and count > 1:
        raise BadDecision(decision, f"{items} items; a batch has at most {most}")
    if count == len(waiting):
        waiting.clear()
        del view.waiting[decision.model]
    else:
        for _ in requests:
            waiting.popleft()
    model.waiting_items -= items
    state.batches_made += 1
    expected = model.expected_ns(device.spec, units, items)
    block = _take_block(device, units)
    batch = RunningBatch(
        BatchId(state.batches_made), decision.model, device.spec.id, count, items, units, block, now, expected,
        requests[0].deadline_ns,
    )  # fmt: skip
    state.batches[batch.id] = device.running[batch.id] = model.running[batch.id] = batch
    device.free -= units
    device.startable = find_startable(device)
    return Dispatch(
        batch.id, decision.model, requests, device.spec.id, units, block, expected, decision.reason
    )


def refuse(state: ServingState, decision: Refuse) -> list[RejectRequest]:
    """Take waiting requests out.

    Raises
    ------
    BadDecision
        If one of them does not wait; nothing changes.
    """
    model = state.view.models.get(decision.model)
    wanted = set(decision.requests)
    out = [] if model is None else [request for request in model.waiting if request.id in wanted]
    if model is None or len(out) != len(wanted):
        raise BadDecision(decision, "it refuses requests that do not wait")
    if len(out) == len(model.waiting):
        model.waiting.clear()
        state.view.waiting.pop(decision.model, None)
    else:
        kept = [request for request in model.waiting if request.id not in wanted]
        model.waiting.clear()
        model.waiting.extend(kept)
    model.waiting_items -= sum(request.items for request in out)
    model.refused += len(out)
    return [RejectRequest(request, decision.retry_at_ns, decision.reason) for request in out]


def apply_instance(
    state: ServingState, decision: PrepareInstance | RetireInstance
) -> PrepareInstance | RetireInstance:
    """Check a decision about an instance, and take a retired one out of the model's ready shares.

    Raises
    ------
    BadDecision
        If there is no such model, device or share.
    """
    model = state.view.models.get(decision.model)
    device = state.view.devices.get(decision.device)
    if model is None or device is None or decision.units not in device.spec.shares:
        raise BadDecision(decision, "there is no such model, device or share")
    if isinstance(decision, RetireInstance):
        model.ready.get(device.spec.id, set()).discard(decision.units)
    return decision


def _take_block(device: DeviceState, units: int) -> frozenset[int] | None:
    if not device.spec.blocks:
        return None
    return next(block for block in free_blocks(device) if len(block) == units)
