"""Finding a place for one more batch in the calendars, by moving another one if need be."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from polymux.policy.serving.spacetime.lane import Lane, Point
from polymux.policy.serving.spacetime.plan import Plan
from polymux.policy.serving.spacetime.slot import NO_DEADLINE_NS, Board, Slot

MOST_SLOTS = 48
"""Batches of a model that are planned; what waits behind them is promised by how fast they take it."""
_UNSURE = 1.25
"""What waits behind the slots is taken to last so many times longer: others may come in between."""
_NEVER = 1 << 62
_DEAR_QUIET, _DEAR_BUSY = 4.0, 1.3
"""How much more of the devices than the cheapest batch one may cost, while there is little and much to do."""
_DEAR_LIMITED = 1.3
"""How much more still, for models that get less than they want: rather a dear batch beside the others than none."""
_WHOLE = 0.1
"""Part of a unit that need not be left free for others."""
_MOVED = 5
"""Slots whose move is tried when there is no room."""


def place(plan: Plan, lane: Lane, now: int, deadline: int, items: int) -> tuple[Slot | None, int]:
    """Reserve a batch that ends before `deadline`.

    Parameters
    ----------
    plan : Plan
    lane : Lane
    now, deadline : int, ns
    items : int
        That are promised at once; 0: it is kept for requests that are expected.

    Returns
    -------
    slot : Slot or None
        None: there is no room.
    end : int, ns
        The earliest end, with its margin, that could be found; if there is no room, it lies after the deadline.
    """
    boards = [plan.boards[device_id] for device_id in lane.points]
    for board in boards:
        board.advance(now)
    slot, soonest = _earliest(plan, lane, boards, now, deadline, items)
    if slot is None and items and not lane.limited:
        slot = _search(plan, lane, boards, now, deadline, items)
    if slot is not None:
        plan.enter(lane, slot)
    return slot, soonest


def behind(plan: Plan, lane: Lane, waiting_items: int, deadline: int, items: int, now: int) -> bool:
    """Promise an answer behind as many slots as a model has at most, by how fast these take what waits.

    What waits behind them gets its slots as batches start. Planning each batch of a long queue would cost more with
    every further one, and none of those plans would last that long.
    """
    slots = lane.slots
    last = slots[-1]
    if lane.best is None:
        return False
    room = sum(slot.capacity for slot in slots)
    beyond = max(0, waiting_items + items - room)
    each_ns = (last.end - min(now, slots[0].start)) / room
    took = last.end - last.start
    end = last.end + int(_UNSURE * beyond * each_ns) + last.board.margin_ns(took, last.spread_ns)
    lane.closed_before, lane.closed_version = end, -1
    if end > deadline:
        return False
    if last.items < last.capacity:
        settle(plan, lane, waiting_items + items, now)
    plan.news = True
    return True


def settle(plan: Plan, lane: Lane, items: int, now: int) -> None:
    """Spread what waits over the slots in their order; what has no slot gets one, late if need be."""
    for slot in lane.slots:
        slot.items = min(slot.capacity, items)
        items -= slot.items
    if lane.best is None:  # nothing is fast enough any more, but what was let in is not left lying
        for device_id, shares in list(lane.shares.items())[:1]:
            board, units = plan.boards[device_id], shares[-1]
            board.advance(now)
            while items > 0 and len(lane.slots) < MOST_SLOTS:
                batch = min(items, lane.max_batch(board.spec.kind))
                took = lane.expected_ns(board.spec.kind, units, batch)
                start = board.calendar.find(units, took, lane.slots[-1].end if lane.slots else now)
                slot = Slot(lane.model.name, board, units, start, start + took, batch, batch, now)
                plan.enter(lane, slot)
                items -= batch
        return
    while items > 0 and len(lane.slots) < MOST_SLOTS:
        part = min(items, lane.best.batch)
        boards = [plan.boards[device_id] for device_id in lane.points]
        for board in boards:
            board.advance(now)
        made, _ = _earliest(plan, lane, boards, now, NO_DEADLINE_NS, part, lenient=True)
        if made is None:
            return
        made.deadline = now
        plan.enter(lane, made)
        items -= part


def _earliest(
    plan: Plan, lane: Lane, boards: Sequence[Board], now: int, deadline: int, items: int, *, lenient: bool = False,
    soonest: int = _NEVER,
) -> tuple[Slot | None, int]:  # fmt: skip
    """A slot where there is room, not yet entered; or the earliest end that was found, if before `soonest`."""
    best = lane.best
    if best is None:
        return None, _NEVER
    patience = plan.budget.patience
    before = lane.slots[-1].start if lane.slots else lane.last_start
    earliest = now
    if lane.limited and lane.paid_until > now and not lenient:
        earliest = lane.paid_until
    target = earliest if lenient or lane.in_bursts else max(earliest, before + int(lane.period_ns * patience))
    dear_ns = best.cost_ns * (_NEVER if lenient else _DEAR_QUIET - (_DEAR_QUIET - _DEAR_BUSY) * patience)
    for part, kept in _ways(lane):
        for board in boards:
            points = lane.points[board.spec.id]
            if part < 1:
                points = lane.smaller(points, part, items, board.spec)
            for usual in points:
                if usual.cost_ns > dear_ns / part * (_DEAR_LIMITED if lane.limited else 1):
                    break
                # one request may bring more than is collected otherwise
                point = usual if usual.batch >= items else lane.enlarged(usual, items, board.spec)
                slot, end = _try(lane, board, point, earliest, target, deadline, items, kept, soonest)
                if slot is not None:
                    return slot, end
                if end < soonest:
                    soonest = end
    return None, soonest


def _ways(lane: Lane) -> tuple[tuple[float, float], ...]:
    """Which part of the batch to try, and what part of the device to leave free meanwhile; in this order."""
    room = lane.headroom
    if lane.limited:
        return ((1.0, room),)
    if room:
        return ((1.0, room), (1.0, 0.0), (0.5, 0.0))
    return ((1.0, 0.0), (0.5, 0.0))


def _try(
    lane: Lane, board: Board, point: Point, earliest: int, target: int, deadline: int, items: int, kept: float,
    soonest: int,
) -> tuple[Slot | None, int]:  # fmt: skip
    """A slot that starts as late as `target` if possible, and its end with margin; None if that is too late.

    Where it is too late whatever is reserved, and does not end before `soonest`, its end is of no interest.
    """
    took = point.ns
    if lane.slots:  # batches of a model end in the order of their starts, as its requests wait in order
        last = lane.slots[-1]
        earliest = max(earliest, last.start, last.end - took)
    units = point.units + ceil(kept * board.spec.units - _WHOLE)
    bound = earliest + took + board.margin_ns(took, lane.spread_ns(took, 0.0))
    if units > board.spec.units and lane.limited and lane.learned and len(lane.points[board.spec.id]) == 1:
        units = (
            board.spec.units
        )  # the share that the search for its knee looks at is the only one that it may use
    if units > board.spec.units or (bound > deadline and bound >= soonest):
        return None, _NEVER
    calendar = board.calendar
    usual_ns = board.margin_ns(took, lane.spread_ns(took, board.typical_ns))
    wished = min(target, deadline - took - usual_ns)
    start = calendar.find_last(units, took, earliest, wished) if wished > earliest else -1
    if start < 0:
        start = calendar.find(units, took, max(earliest, wished))
    while True:
        before_ns = board.before_ns(point.units, start)
        spread_ns = lane.spread_ns(took, before_ns)
        end = start + took + board.margin_ns(took, spread_ns)
        if end <= deadline:
            break
        if wished <= earliest:
            return None, end
        start, wished = calendar.find(units, took, earliest), earliest
    slot = Slot(
        lane.model.name, board, point.units, start, start + took, point.batch, items, deadline, before_ns, spread_ns,
        point.batch,
    )  # fmt: skip
    return slot, end


def _search(
    plan: Plan, lane: Lane, boards: Sequence[Board], now: int, deadline: int, items: int
) -> Slot | None:
    """Make room by moving one slot of another model, which still ends by its deadline."""
    for board in boards:
        others = [
            slot
            for start, _, slot in board.slots
            if start < deadline and slot.end > now and slot.model != lane.model.name
        ]
        others.sort(key=lambda slot: slot.end - slot.deadline)
        for other in others[:_MOVED]:
            board.release(other)
            made, _ = _earliest(plan, lane, (board,), now, deadline, items, soonest=0)
            if made is not None:
                board.calendar.take(made.start, made.end, made.units)
                moved = _move(plan.lanes[other.model], other, now)
                board.calendar.give(made.start, made.end, made.units)
                board.reserve(other)
                if moved:
                    return made
            else:
                board.reserve(other)
    return None


def _move(lane: Lane, slot: Slot, now: int) -> bool:
    """Find another time for a slot that has been released, between its neighbours and before its deadline."""
    index = lane.slots.index(slot)
    took = slot.end - slot.start
    earliest, latest = now, slot.deadline - took - slot.board.margin_ns(took, slot.spread_ns)
    if index:
        earliest = max(now, lane.slots[index - 1].start, lane.slots[index - 1].end - took)
    if index + 1 < len(lane.slots):
        latest = min(latest, lane.slots[index + 1].start, lane.slots[index + 1].end - took)
    if latest < earliest:
        return False
    start = slot.board.calendar.find(slot.units, took, earliest)
    if start > latest:
        return False
    slot.start, slot.end = start, start + took
    return True
