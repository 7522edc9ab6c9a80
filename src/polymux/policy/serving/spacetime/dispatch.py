"""What starts now on a device, and on how many units."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from polymux.core.serving.view import DeviceState, ModelState, ServingView
from polymux.policy.serving.spacetime.lane import Lane
from polymux.policy.serving.spacetime.plan import Plan
from polymux.policy.serving.spacetime.slot import Board, Slot

_LOOK_AT = 16
"""Slots that are looked at, in the order of their starts."""


@dataclass(slots=True)
class Choice:
    """A batch to start now."""

    slot: Slot
    units: int
    requests: int
    items: int
    ns: int
    reason: str


def choose(plan: Plan, view: ServingView, board: Board, device: DeviceState, now: int) -> Choice | None:
    """Find the batch that should start on a device now; None: nothing should.

    Slots that are due come first. Others are pulled forward when that takes nothing from any reservation.
    """
    chosen: Choice | None = None
    others = 0
    for _, _, slot in list(islice(board.slots, _LOOK_AT)):
        state = view.models[slot.model]
        lane = plan.lanes[slot.model]
        if not state.waiting:
            if slot.start <= now:
                plan.drop(lane, slot)
            continue
        shares = [units for units in device.startable if units in state.ready.get(device.spec.id, ())]
        if not shares:
            continue
        made = _option(plan, lane, state, slot, shares, now)
        if made is None:
            continue
        if chosen is None:
            chosen = made
        elif made.slot.model != chosen.slot.model:
            others += made.units
    if chosen is not None:
        _widen(plan, view, device, chosen, others, now)
    return chosen


def _option(
    plan: Plan, lane: Lane, state: ModelState, slot: Slot, shares: list[int], now: int
) -> Choice | None:
    due = slot.start <= now
    board = slot.board
    kind = board.spec.kind
    waiting = state.waiting_items
    if not due and waiting < plan.patience * slot.capacity:
        return None
    calendar = board.calendar
    calendar.give(slot.start, slot.end, slot.units)
    try:
        deadline = state.waiting[0].deadline_ns
        most = min(waiting, lane.max_batch(kind))
        order = [slot.units] if slot.units in shares else []
        order += [
            point.units
            for point in lane.points.get(board.spec.id, ())
            if point.units in shares and point.units != slot.units
        ]
        for units in order:
            wanted = min(most, max(slot.capacity, 1)) if due else most
            least = max(1, min(most, slot.items))  # what is promised for this slot goes with it
            while wanted >= least:
                took = lane.expected_ns(kind, units, wanted)
                end = now + took
                if calendar.least(now, end) >= units and (end <= deadline or due):
                    if due and wanted < most:  # more, where there is room
                        longer = lane.expected_ns(kind, units, most)
                        if calendar.least(now, now + longer) >= units and now + longer <= deadline:
                            wanted, took = most, longer
                    requests, items = _requests(state, wanted)
                    if items != wanted:
                        took = lane.expected_ns(kind, units, items)
                    return Choice(slot, units, requests, items, took, "due" if due else "ahead of its time")
                if wanted == least:
                    break
                wanted = max(least, wanted // 2)
        if due and (slot.units in shares or not board.running):
            units = slot.units if slot.units in shares else max(shares)
            requests, items = _requests(state, min(most, slot.capacity))
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


def _widen(plan: Plan, view: ServingView, device: DeviceState, chosen: Choice, others: int, now: int) -> None:
    """Give a batch idle units beside its own, as far as it gains by them and nobody else has use for them."""
    slot = chosen.slot
    lane = plan.lanes[slot.model]
    kind = slot.board.spec.kind
    ready = view.models[slot.model].ready[device.spec.id]
    calendar = slot.board.calendar
    calendar.give(slot.start, slot.end, slot.units)
    spare = calendar.least(now, now + chosen.ns) - others
    calendar.take(slot.start, slot.end, slot.units)
    limit = chosen.units * chosen.ns * (1.1 + 4 * max(0.0, 1 - plan.load))
    for units in device.startable:
        if chosen.units < units <= spare and units in ready:
            took = lane.expected_ns(kind, units, chosen.items)
            if took < chosen.ns and took * units <= limit:
                chosen.units, chosen.ns, chosen.reason = units, took, "with idle units"
