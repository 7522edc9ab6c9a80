"""The policy `spacetime`: what is admitted has a place in a calendar, what has none is refused at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Self

from polymux.core.decision import WakeAt
from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import PolicyDecision, RejectRequest, Start
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
from polymux.core.serving.model import BatchId, ModelName, Request
from polymux.core.serving.view import DeviceState, ServingView
from polymux.policy.serving.spacetime.calendar import Calendar
from polymux.policy.serving.spacetime.dispatch import Choice, choose, next_start
from polymux.policy.serving.spacetime.instances import Instances
from polymux.policy.serving.spacetime.lane import Lane
from polymux.policy.serving.spacetime.placing import MOST_SLOTS, behind, place, settle
from polymux.policy.serving.spacetime.plan import Plan
from polymux.policy.serving.spacetime.slot import Board, Running, Slot

_NEVER = 1 << 62
_TUNE_FIRST_NS, _TUNE_NS, _TUNE_NS_PER_MODEL = 4_000_000, 50_000_000, 500_000
"""Rates are measured and devices divided anew so often; sooner in the beginning."""
_FORGOTTEN = 1e-6
"""Items expected within an SLO, below which none are."""
_USUAL_GAIN = 0.2
_RATE_NS = 150_000_000
"""Time constant of measured rates."""


class SpaceTime:
    """Plan on the whole latency surface, give idle share away, refuse early what cannot be met."""

    def __init__(self) -> None:
        self._plan = Plan()
        self._running: dict[BatchId, tuple[Running, Board]] = {}
        self._unmatched: list[tuple[Running, Board]] = []
        self._tuned_at = self._tune_at = self._began_at = -1
        self._tune_every = _TUNE_FIRST_NS
        self._wake_at = -1
        self._instances = Instances()

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
        if plan.unweighed:
            plan.weigh()
        lane = plan.lanes[request.model]
        items = request.items
        lane.arrived_items += items
        lane.seen_items += items
        deadline = request.deadline_ns
        slots = lane.slots
        waiting = view.models[request.model].waiting
        if len(slots) >= MOST_SLOTS:
            if behind(plan, lane, view.models[request.model].waiting_items, deadline, items, now):
                return None
            return self._refused(lane, request, now)
        if waiting and deadline < waiting[-1].deadline_ns:
            if plan.insert(lane, waiting, request, now) or self._insert_with_room(
                lane, waiting, request, now
            ):
                return None
        elif slots and plan.join(lane, now, deadline, items):
            return None
        else:
            if slots and not slots[-1].items:  # it was kept for requests that were expected later
                plan.drop(lane, slots[-1])
            if lane.closed_version != plan.version or deadline >= lane.closed_before:
                slot, end = place(plan, lane, now, deadline, items)
                if slot is not None:
                    return None
                lane.closed_before, lane.closed_version = end, plan.version
        return self._refused(lane, request, now)

    def _insert_with_room(self, lane: Lane, waiting: Sequence[Request], request: Request, now: int) -> bool:
        """Reserve one more batch behind the others and promise a place to a request that goes before some of them."""
        plan = self._plan
        slot, _ = place(plan, lane, now, waiting[-1].deadline_ns, request.items)
        if slot is None:
            return False
        slot.items = 0
        if plan.insert(lane, waiting, request, now):
            return True
        plan.drop(lane, slot)
        return False

    @staticmethod
    def _refused(lane: Lane, request: Request, now: int) -> RejectRequest:
        lane.refused_items += request.items
        if not lane.points:
            reason = f"no device can run {request.model} within its deadline, or it is not ready yet"
            return RejectRequest(request, None, reason)
        late_ns = lane.closed_before - request.deadline_ns
        if late_ns <= 0 or lane.closed_before >= _NEVER:
            return RejectRequest(request, None, f"there is no room for {request.model} before the deadline")
        reason = f"{request.model} would be answered {late_ns / 1e6:.1f} ms after the deadline"
        return RejectRequest(request, now + late_ns, reason)

    # ---- decisions ----

    def awaits(self, view: ServingView, request: Request, now: int) -> bool:  # noqa: ARG002
        """Look again when a slot was reserved or filled, or is due."""
        return self._plan.news or now >= self._wake_at

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        """Start what is due, then what can be pulled forward."""
        plan = self._plan
        if self._unmatched:
            self._match(view)
        if not isinstance(event, RequestsArrived):
            self._fold(view, event, now)
        if now >= self._tune_at:
            self._tune_all(view, now)
        if plan.unweighed and (view.waiting or self._running):
            plan.weigh()
        chosen = self._look(view, now)
        if self._instances.wishes:
            chosen = [*chosen, *self._instances.wishes]
            self._instances.wishes = []
        return chosen

    def _look(self, view: ServingView, now: int) -> Sequence[PolicyDecision]:
        plan = self._plan
        wake = _NEVER
        for device_id, board in plan.boards.items():
            if not board.slots:
                continue
            device = view.devices[device_id]
            if not device.startable:
                wake = min(wake, next_start(plan, view, board, now))
                continue
            chosen, due = self._act(view, board, device, now)
            if chosen:
                return chosen
            wake = min(wake, due)
        if wake == _NEVER and not self._running and (stray := self._stray(view, now)):
            return stray
        plan.news = False
        if wake < _NEVER and (wake < self._wake_at or self._wake_at <= now):
            self._wake_at = wake
            return [WakeAt(wake)]
        return ()

    def _stray(self, view: ServingView, now: int) -> Sequence[PolicyDecision]:
        """Start what waits without a slot while nothing runs: what no model's surface or readiness had a place for."""
        plan = self._plan
        for name, state in view.waiting.items():
            for device_id, board in plan.boards.items():
                shares = [u for u in view.devices[device_id].startable if u in state.ready.get(device_id, ())]
                if not shares:
                    continue
                lane = plan.lanes[name]
                lane.shares.setdefault(device_id, shares)
                if board.spec.kind not in lane.model.surfaces:
                    self._instances.usable(lane, state, board)
                board.advance(now)
                took = lane.expected_ns(board.spec.kind, shares[-1], state.waiting[0].items)
                slot = Slot(name, board, shares[-1], now, now + took, 1, 0, now)
                plan.enter(lane, slot)
                choice = Choice(slot, shares[-1], 1, state.waiting[0].items, took, "nothing else runs")
                return [self._start(view, board, choice, now)]
        return ()

    def _act(
        self, view: ServingView, board: Board, device: DeviceState, now: int
    ) -> tuple[Sequence[PolicyDecision], int]:
        """What is to be done on a device, and when the next slot is due there."""
        plan = self._plan
        board.advance(now)
        if board.overdue:
            self._notice(view, board, now)
        answer = choose(plan, view, board, device, now)
        if answer.refused:  # they still wait in the view; the others are looked at in a moment
            self._wake_at = now + 1
            for late in answer.refused:
                gone = set(late.requests)
                waiting = view.models[late.model].waiting
                left = sum(request.items for request in waiting if request.id not in gone)
                settle(plan, plan.lanes[late.model], left, now)
            return [*answer.refused, WakeAt(now + 1)], _NEVER
        if answer.choice is None:
            return (), answer.wake
        return [self._start(view, board, answer.choice, now)], _NEVER

    def _notice(self, view: ServingView, board: Board, now: int) -> None:
        """See that models have become slower before their batches have ended, so that no more of them are started."""
        for batch in board.overdue:
            lane = self._plan.lanes.get(batch.model)
            if lane is not None and lane.overrun(
                board.spec.kind, batch.units, batch.items, now - batch.start, now
            ):
                board.upset_until = max(board.upset_until, now + (now - batch.start))
                lane.stale()
                self._tune(lane, view)
        board.overdue.clear()

    def _start(self, view: ServingView, board: Board, choice: Choice, now: int) -> Start:
        plan, slot = self._plan, choice.slot
        lane = plan.lanes[slot.model]
        board.release(slot)
        lane.slots.remove(slot)
        if slot.start > now:
            plan.version += 1
        end = now + choice.ns
        board.calendar.take(now, end, choice.units)
        deadline = view.models[slot.model].waiting[0].deadline_ns
        spread_ns = lane.spread_ns(choice.ns, 0.0)
        batch = Running(slot.model, choice.units, choice.items, now, end, end, deadline, spread_ns)
        board.running.append(batch)
        self._unmatched.append((batch, board))
        lane.last_start = now
        gain = _USUAL_GAIN if lane.usual_items else 1.0
        lane.usual_items += gain * (choice.items - lane.usual_items)
        settle(plan, lane, view.models[slot.model].waiting_items - choice.items, now)
        if not lane.slots and not lane.in_bursts and lane.rate_per_ns * lane.model.slo_ns > 1:
            place(plan, lane, now, now + lane.model.slo_ns, 0)
        plan.news = True
        return Start(slot.model, board.spec.id, choice.units, choice.requests, choice.reason)

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
        plan, instances = self._plan, self._instances
        instances.searches.observe(view, event, now)
        match event:
            case BatchEnded(number, failed):
                known = self._running.pop(number, None)
                if known is not None:
                    self._end(view, *known, failed, now)
            case ModelAdded(model):
                self._change_model(view, model.name, now)
            case ModelRemoved(name):
                instances.forget(name=name)
                self._change_model(view, name, now)
            case InstanceReady(name, device_id, units):
                instances.came(name, device_id, units)
                self._change_model(view, name, now)
            case InstanceFailed(name, device_id, units):
                instances.failed(plan.lanes.get(name), plan.boards.get(device_id), units)
                self._change_model(view, name, now)
            case ServingDeviceAdded(device):
                instances.forget(device=device.id)
                plan.boards[device.id] = board = Board(device, Calendar(device.units))
                board.advance(now)
                for lane in plan.lanes.values():
                    instances.wish(lane, view, plan.boards)
            case ServingDeviceLost(device_id, _):
                self._lose(view, device_id, now)
            case _:
                pass

    def _end(self, view: ServingView, batch: Running, board: Board, failed: bool, now: int) -> None:
        self._forget(batch, board, now)
        lane = self._plan.lanes.get(batch.model)
        if lane is None or failed:
            return
        board.measure(batch, now)
        if not self._instances.is_unknown(lane, board):
            lane.measure(board.spec.kind, batch.units, batch.items, now - batch.start, now)
        elif board.spec.id in self._plan.boards:  # the search has measured it
            lane.stale()
            self._tune(lane, view)
            self._instances.retire(lane, view, board)

    def _change_model(self, view: ServingView, name: ModelName, now: int) -> None:
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
        elif lane.model is not state.model:
            lane.update(state.model)
        lane.untune()
        self._tune(lane, view)
        plan.unweighed = True
        for slot in list(lane.slots):
            if slot.units not in state.ready.get(slot.board.spec.id, ()):
                plan.drop(lane, slot)
        settle(plan, lane, state.waiting_items, now)

    def _lose(self, view: ServingView, device_id: DeviceId, now: int) -> None:
        plan = self._plan
        board = plan.boards.pop(device_id, None)
        if board is None:
            return
        for lane in plan.lanes.values():
            lane.stale()
            lane.slots = [slot for slot in lane.slots if slot.board is not board]
            self._tune(lane, view)
        plan.weigh()
        for name, lane in plan.lanes.items():
            settle(plan, lane, view.models[name].waiting_items, now)

    # ---- rates and points ----

    def _tune(self, lane: Lane, view: ServingView) -> None:
        if not lane.is_stale:
            return
        state = view.models[lane.model.name]
        boards = self._plan.boards
        places = [boards[device_id] for device_id in state.ready if device_id in boards]
        lane.tune({board.spec.id: (board, self._instances.usable(lane, state, board)) for board in places})
        self._instances.wish(lane, view, boards)

    def _tune_all(self, view: ServingView, now: int) -> None:
        plan = self._plan
        lanes = plan.lanes.values()
        if self._tuned_at < 0:
            if not any(lane.arrived_items for lane in lanes):
                return
            self._began_at = self._tuned_at = now
            self._tune_at = now + self._tune_every
            return
        passed = now - self._tuned_at
        gain = max(1 - exp(-passed / _RATE_NS), passed / (now - self._began_at))
        for lane in lanes:
            if not lane.arrived_items and not lane.rate_per_ns:
                continue
            lane.rate_per_ns += gain * (lane.arrived_items / passed - lane.rate_per_ns)
            lane.arrived_items = 0
            if lane.rate_per_ns * lane.model.slo_ns < _FORGOTTEN:
                lane.rate_per_ns = 0.0
            if lane.pace.fade(now) or self._instances.try_again(lane, now):
                lane.stale()
            self._tune(lane, view)
        plan.weigh()
        plan.version += 1
        self._tuned_at = now
        self._tune_every = min(2 * self._tune_every, _TUNE_NS + _TUNE_NS_PER_MODEL * len(plan.lanes))
        self._tune_at = now + self._tune_every
