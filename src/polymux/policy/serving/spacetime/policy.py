"""Reservations on the whole latency surface: idle share is given away, what cannot be met is refused at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from polymux.core.decision import WakeAt
from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import PolicyDecision, Refuse, RejectRequest, Start
from polymux.core.serving.event import (
    BatchEnded,
    InstanceFailed,
    InstanceReady,
    ModelAdded,
    ModelRemoved,
    RequestsArrived,
    ServingDeviceAdded,
    ServingDeviceLost,
    ServingEvent,
)
from polymux.core.serving.model import BatchId, ModelName, Request, ServingDevice
from polymux.core.serving.view import ServingView
from polymux.policy.serving.spacetime.calendar import Calendar
from polymux.policy.serving.spacetime.dispatch import Choice, choose
from polymux.policy.serving.spacetime.lane import Lane
from polymux.policy.serving.spacetime.plan import Plan
from polymux.policy.serving.spacetime.slot import Board, Running

_TUNE_NS = 40_000_000
_TUNE_NS_PER_MODEL = 400_000
_RATE_GAIN = 0.3


class SpaceTime:
    """Plan on the whole surface, give idle share away, and refuse early what cannot be met."""

    def __init__(self) -> None:
        self._plan = Plan()
        self._running: dict[BatchId, tuple[Running, Board]] = {}
        self._unmatched: list[tuple[Running, Board]] = []
        self._tuned_at = -(1 << 62)
        self._touched: set[ModelName] = set()

    @classmethod
    def make(cls, option: str) -> Self:
        """Make the policy; it has no options."""
        if option:
            raise InvalidRequest(f"policy 'spacetime' has no option; it was given {option!r}")
        return cls()

    # ---- admission ----

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:
        """Promise the request a place in a batch that ends by its deadline, or say from when on there would be one."""
        plan = self._plan
        lane = plan.lanes[request.model]
        lane.arrived_items += request.items
        deadline = request.deadline_ns
        if lane.slots and plan.join(lane, now, deadline, request.items):
            return None
        if lane.closed_version == plan.version and deadline < lane.closed_before:
            return self._refused(lane, request, now)
        if not lane.points and self._tune(lane, view):
            plan.weigh()
        slot, end = plan.place(lane, now, deadline, request.items)
        if slot is not None:
            return None
        lane.closed_before, lane.closed_version = end, plan.version
        return self._refused(lane, request, now)

    def _refused(self, lane: Lane, request: Request, now: int) -> RejectRequest:
        late_ns = lane.closed_before - request.deadline_ns
        if not lane.points:
            reason = f"no device can run {request.model} within its deadline"
            return RejectRequest(request, None, reason)
        reason = f"{request.model} would be answered {late_ns / 1e6:.1f} ms after the deadline"
        return RejectRequest(request, now + late_ns, reason)

    # ---- decisions ----

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        """Start what is due, then what can be pulled forward."""
        plan = self._plan
        self._match(view)
        if not isinstance(event, RequestsArrived):
            self._fold(view, event, now)
        if now - self._tuned_at >= _TUNE_NS + _TUNE_NS_PER_MODEL * len(plan.lanes):
            self._tune_all(view, now)
        refused = self._late(view, now)
        if refused:
            return [*refused, WakeAt(now + 1)]
        wake = 1 << 62
        for device_id, board in plan.boards.items():
            device = view.devices[device_id]
            if not board.slots:
                continue
            if device.startable:
                board.advance(now)
                choice = choose(plan, view, board, device, now)
                if choice is not None:
                    return [self._start(view, board, choice, now)]
            for start, _, slot in board.slots:
                if start > now and slot.items:
                    wake = min(wake, start)
                    break
        if wake < 1 << 62:
            return [WakeAt(wake)]
        return []

    def _start(self, view: ServingView, board: Board, choice: Choice, now: int) -> Start:
        plan, slot = self._plan, choice.slot
        lane = plan.lanes[slot.model]
        board.release(slot)
        lane.slots.remove(slot)
        if slot.start > now:
            plan.version += 1
        end = now + choice.ns
        board.calendar.take(now, end, choice.units)
        surface_ns = lane.surface_ns(board.spec.kind, choice.units, choice.items)
        batch = Running(slot.model, choice.units, choice.items, now, end, surface_ns)
        board.running.append(batch)
        self._unmatched.append((batch, board))
        lane.last_start = now
        left = view.models[slot.model].waiting_items - choice.items
        plan.settle(lane, left, now)
        if not lane.slots and lane.rate_per_ns * lane.model.slo_ns > 1:
            plan.place(lane, now, now + int(1 / lane.rate_per_ns) + lane.model.slo_ns, 0)
        return Start(slot.model, board.spec.id, choice.units, choice.requests, choice.reason)

    def _late(self, view: ServingView, now: int) -> list[PolicyDecision]:
        """Refuse what can no longer be met, whatever is done."""
        refused: list[PolicyDecision] = []
        for name, lane in self._plan.lanes.items():
            if not lane.slots:
                continue
            state = view.models[name]
            waiting = state.waiting
            if not waiting or waiting[0].deadline_ns > now:
                continue
            late = [request.id for request in waiting if request.deadline_ns <= now]
            refused.append(Refuse(name, late, None, "its deadline has passed"))
        return refused

    # ---- what happened ----

    def _match(self, view: ServingView) -> None:
        """Find out which numbers the engine gave to the batches that were started."""
        for batch, board in self._unmatched:
            device = view.devices.get(board.spec.id)
            for running in reversed(device.running.values() if device is not None else ()):
                if running.id not in self._running and running.model == batch.model:
                    self._running[running.id] = (batch, board)
                    break
            else:
                self._forget(batch, board, batch.start)
        self._unmatched.clear()

    def _forget(self, batch: Running, board: Board, now: int) -> None:
        if batch in board.running:
            board.running.remove(batch)
            if batch.end > now:
                board.calendar.give(now, batch.end, batch.units)
                self._plan.version += 1

    def _fold(self, view: ServingView, event: ServingEvent, now: int) -> None:
        match event:
            case BatchEnded(number, failed):
                known = self._running.pop(number, None)
                if known is not None:
                    batch, board = known
                    self._forget(batch, board, now)
                    lane = self._plan.lanes.get(batch.model)
                    if lane is not None and not failed:
                        lane.pace.measure(batch.units, (now - batch.start) / batch.surface_ns, now)
            case ModelAdded() | ModelRemoved() | InstanceReady() | InstanceFailed():
                name = event.model.name if isinstance(event, ModelAdded) else event.model
                self._model(view, name, now)
            case ServingDeviceAdded(device):
                self._device(device, now)
            case ServingDeviceLost(device_id, _):
                self._lost(view, device_id, now)
            case _:
                pass

    def _model(self, view: ServingView, name: ModelName, now: int) -> None:
        plan = self._plan
        state = view.models.get(name)
        lane = plan.lanes.get(name)
        if state is None:
            if lane is not None:
                for slot in list(lane.slots):
                    plan.drop(lane, slot)
                del plan.lanes[name]
            return
        if lane is None:
            lane = plan.lanes[name] = Lane(state.model)
        else:
            lane.update(state.model)
        self._tune(lane, view)
        plan.weigh()
        for slot in list(lane.slots):
            if slot.board.spec.id not in lane.points:
                plan.drop(lane, slot)
        plan.settle(lane, state.waiting_items, now)

    def _device(self, device: ServingDevice, now: int) -> None:
        board = self._plan.boards[device.id] = Board(device, Calendar(device.units))
        board.advance(now)

    def _lost(self, view: ServingView, device_id: DeviceId, now: int) -> None:
        plan = self._plan
        board = plan.boards.pop(device_id, None)
        if board is None:
            return
        for lane in plan.lanes.values():
            lane.stale()
            lane.slots = [slot for slot in lane.slots if slot.board is not board]
            lane.points.pop(device_id, None)
        self._tune_all(view, now)
        for name, lane in plan.lanes.items():
            plan.settle(lane, view.models[name].waiting_items, now)

    # ---- rates and points ----

    def _tune(self, lane: Lane, view: ServingView) -> bool:
        state = view.models[lane.model.name]
        ready = {
            device_id: (view.devices[device_id].spec, shares)
            for device_id, shares in state.ready.items()
            if device_id in self._plan.boards
        }
        return lane.tune(ready)

    def _tune_all(self, view: ServingView, now: int) -> None:
        passed = now - self._tuned_at
        first = self._tuned_at < 0
        self._tuned_at = now
        for lane in self._plan.lanes.values():
            rate = lane.arrived_items / passed if passed > 0 else 0.0
            lane.arrived_items = 0
            if not first:
                gain = 1.0 if not lane.rate_per_ns else _RATE_GAIN
                lane.rate_per_ns += gain * (rate - lane.rate_per_ns)
            lane.pace.fade(now)
            self._tune(lane, view)
        self._plan.weigh()
