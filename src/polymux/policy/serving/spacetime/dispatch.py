"""What starts now on a device, and on how many units."""

from __future__ import annotations

from dataclasses import dataclass, field

from polymux.core.serving.decision import Refuse
from polymux.core.serving.view import DeviceState, ModelState, ServingView
from polymux.policy.serving.spacetime.lane import Lane
from polymux.policy.serving.spacetime.plan import Plan
from polymux.policy.serving.spacetime.slot import Board, Slot

_LOOK_AT = 16
"""Batches that could start that are compared, in the order of their slots."""


@dataclass(slots=True)
class Choice:
    """A batch to start now."""

    slot: Slot
    units: int
    requests: int
    items: int
    ns: int
    reason: str


@dataclass(slots=True)
class Answer:
    """What is to be done on a device."""

    choice: Choice | None = None
    refused: list[Refuse] = field(default_factory=list)


def choose(plan: Plan, view: ServingView, board: Board, device: DeviceState, now: int) -> Answer:
    """Find the batch that should start on a device now, and what can be met no more.

    Slots that are due come first. Others are pulled forward when that takes nothing from any reservation.
    """
    answer = Answer()
    empty: list[Slot] = []
    others = looked = 0
    patience = plan.budget.patience
    for start, _, slot in board.slots:
        state = view.models[slot.model]
        if not state.waiting:
            if start <= now:
                empty.append(slot)
            continue
        if start > now and state.waiting_items < patience * slot.capacity:
            continue
        option = _look_at(plan.lanes[slot.model], state, slot, device, answer, now)
        if option is None:
            continue
        if answer.choice is None:
            answer.choice = option
        elif slot.model != answer.choice.slot.model:
            others += option.units
        looked += 1
        if looked == _LOOK_AT:
            break
    for slot in empty:
        plan.drop(plan.lanes[slot.model], slot)
    if answer.choice is not None:
        name = answer.choice.slot.model
        shares = _shares(view.models[name], device)
        _widen(plan.lanes[name], shares, answer.choice, others, now, plan.budget.load)
    return answer


def _shares(state: ModelState, device: DeviceState) -> list[int]:
    """Shares on which a model can be started now."""
    ready = state.ready.get(device.spec.id, ())
    return [units for units in device.startable if units in ready]


def _look_at(
    lane: Lane, state: ModelState, slot: Slot, device: DeviceState, answer: Answer, now: int
) -> Choice | None:
    """How a slot could start now, unless what waits for it can be met no more: that goes to the answer."""
    shares = _shares(state, device)
    if not shares or any(late.model == slot.model for late in answer.refused):
        return None
    if slot.start <= now and (late := _hopeless(lane, state, slot.board, now)):
        answer.refused.append(late)
        return None
    return _option(lane, state, slot, shares, now)


def _hopeless(lane: Lane, state: ModelState, board: Board, now: int) -> Refuse | None:
    """Refuse what could not be answered by its deadline even if it ran alone, now, on the fastest share."""
    points = lane.points.get(board.spec.id)
    if not points:
        return None
    soonest = now + min(lane.expected_ns(board.spec.kind, point.units, 1) for point in points)
    if state.waiting[0].deadline_ns >= soonest:
        return None
    late = [request.id for request in state.waiting if request.deadline_ns < soonest]
    return Refuse(lane.model.name, late, None, "it can no longer be answered by its deadline")


def _option(lane: Lane, state: ModelState, slot: Slot, shares: list[int], now: int) -> Choice | None:
    """How the batch of a slot could start now."""
    board = slot.board
    kind = board.spec.kind
    calendar = board.calendar
    deadline = state.waiting[0].deadline_ns
    most = min(state.waiting_items, lane.max_batch(kind))
    least = max(1, min(most, slot.items))  # what is promised for this slot goes with it
    due = slot.start <= now
    calendar.give(slot.start, slot.end, slot.units)
    try:
        order = [slot.units] if slot.units in shares else []
        order += [
            point.units
            for point in lane.points.get(board.spec.id, ())
            if point.units != slot.units and point.units in shares
        ]
        for units in order:
            mine = due and units == slot.units
            for wanted in sorted({most, min(most, slot.capacity), least}, reverse=True):
                requests, items = _requests(state, wanted)
                took = lane.expected_ns(kind, units, items)
                end = now + took
                safe = end + board.margin_ns(took, lane.spread_ns(took, 0.0)) <= deadline
                if (safe or (mine and items <= slot.capacity and end <= deadline)) and calendar.least(
                    now, end
                ) >= units:
                    return Choice(slot, units, requests, items, took, "due" if due else "ahead of its time")
            if mine:
                requests, items = _requests(state, least)
                return Choice(slot, units, requests, items, lane.expected_ns(kind, units, items), "overdue")
        if due and not board.running:
            requests, items = _requests(state, least)
            units = max(shares)
            return Choice(slot, units, requests, items, lane.expected_ns(kind, units, items), "overdue")
    finally:
        calendar.take(slot.start, slot.end, slot.units)
    return None


def _requests(state: ModelState, most: int) -> tuple[int, int]:
    """How many of the first requests make up at most so many items, at least one; and their items."""
    waiting = state.waiting
    if len(waiting) == state.waiting_items:
        return most, most
    items = waiting[0].items
    for count in range(1, len(waiting)):
        more = items + waiting[count].items
        if more > most:
            return count, items
        items = more
    return len(waiting), items


def _widen(lane: Lane, shares: list[int], chosen: Choice, others: int, now: int, load: float) -> None:
    """Give a batch idle units beside its own, as far as it gains by them and nobody else has use for them."""
    slot = chosen.slot
    calendar = slot.board.calendar
    calendar.give(slot.start, slot.end, slot.units)
    spare = calendar.least(now, now + chosen.ns) - others
    calendar.take(slot.start, slot.end, slot.units)
    limit = chosen.units * chosen.ns * (1.1 + 4 * max(0.0, 1 - load))
    for units in shares:
        if chosen.units < units <= spare:
            took = lane.expected_ns(slot.board.spec.kind, units, chosen.items)
            if took < chosen.ns and took * units <= limit:
                chosen.units, chosen.ns, chosen.reason = units, took, "with idle units"
