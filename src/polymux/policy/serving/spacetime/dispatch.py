"""What starts now on a device, and on how many units."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter

from polymux.core.serving.decision import Refuse
from polymux.core.serving.model import ModelName
from polymux.core.serving.view import DeviceState, ModelState, ServingView
from polymux.policy.serving.spacetime.lane import Lane
from polymux.policy.serving.spacetime.plan import Plan
from polymux.policy.serving.spacetime.slot import Board, Slot

_LOOK_AT = 16
"""Batches that could start that are compared, in the order of their slots."""
_NEVER = 1 << 62


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
    """What is to be done on a device: `choice` starts, unless there is something to refuse.

    Parameters
    ----------
    choice : Choice, optional
    refused : list of Refuse
    wake : int, ns
        When the next slot with requests is due; far off for none.
    """

    choice: Choice | None = None
    refused: list[Refuse] = field(default_factory=list)
    wake: int = _NEVER


Candidate = tuple[int, int, Slot, ModelState]
"""A slot with requests, after its start and its number."""


def choose(plan: Plan, view: ServingView, board: Board, device: DeviceState, now: int) -> Answer:
    """Find the batch that should start on a device now, and what can be met no more.

    Slots that are due come first. Others are pulled forward when that takes nothing from any reservation.
    """
    answer = Answer()
    empty = []
    for start, _, slot in board.slots:
        if start > now:
            break
        if slot.model not in view.waiting:
            empty.append(slot)
    candidates = _candidates(plan, view, board, answer, now)
    first_early = bisect_right(candidates, now, key=itemgetter(0))
    options = list(islice(_options(plan, candidates[:first_early], device, answer, now), _LOOK_AT))
    early = _options(plan, candidates[first_early:], device, answer, now)
    if not options:
        options = list(islice(early, 1))
    for slot in empty:
        plan.drop(plan.lanes[slot.model], slot)
    if options and not answer.refused:
        answer.choice = options[0]
        others = chain(options[1:], islice(early, _LOOK_AT - len(options)))
        _widen(plan, view.models[options[0].slot.model], options[0], others, device, now)
    return answer


def next_start(plan: Plan, view: ServingView, board: Board, now: int) -> int:
    """When the next slot with requests is due; far off for none."""
    return min(
        (
            slot.start
            for name in view.waiting
            for slot in plan.lanes[name].slots
            if slot.items and slot.start > now and slot.board is board
        ),
        default=_NEVER,
    )


def _candidates(plan: Plan, view: ServingView, board: Board, answer: Answer, now: int) -> list[Candidate]:
    """Slots that are due, or that have enough requests to start ahead of their time; in their order."""
    found: list[Candidate] = []
    patience, lanes = plan.budget.patience, plan.lanes
    for name, state in view.waiting.items():
        for slot in lanes[name].slots:
            if slot.board is not board:
                continue
            start = slot.start
            if start > now:
                if slot.items and start < answer.wake:
                    answer.wake = start
                if state.waiting_items < patience * slot.capacity:
                    continue
            found.append((start, slot.number, slot, state))
    found.sort()
    return found


def _shares(state: ModelState, device: DeviceState) -> Sequence[int]:
    """Shares on which a model can be started now."""
    ready = state.ready.get(device.spec.id)
    if not ready:
        return ()
    if ready.issuperset(device.startable):
        return device.startable
    return [units for units in device.startable if units in ready]


def _options(
    plan: Plan, candidates: Sequence[Candidate], device: DeviceState, answer: Answer, now: int
) -> Iterator[Choice]:
    """How slots could start now, except those whose requests can be met no more: that goes to the answer."""
    refused: set[ModelName] = set()
    for start, _, slot, state in candidates:
        shares = _shares(state, device)
        if not shares or slot.model in refused:
            continue
        lane = plan.lanes[slot.model]
        if start <= now and (late := _hopeless(lane, state, slot.board, now)):
            answer.refused.append(late)
            refused.add(slot.model)
        elif option := _option(lane, state, slot, shares, now):
            yield option


def _hopeless(lane: Lane, state: ModelState, board: Board, now: int) -> Refuse | None:
    """Refuse what could not be answered by its deadline even if it ran alone, now, on the fastest share."""
    points = lane.points.get(board.spec.id)
    if not points:
        return None
    soonest = now + min([lane.expected_ns(board.spec.kind, point.units, 1) for point in points])
    if state.waiting[0].deadline_ns >= soonest:
        return None
    late = [request.id for request in state.waiting if request.deadline_ns < soonest]
    return Refuse(lane.model.name, late, None, "it can no longer be answered by its deadline")


def _option(lane: Lane, state: ModelState, slot: Slot, shares: Sequence[int], now: int) -> Choice | None:
    """How the batch of a slot could start now."""
    board = slot.board
    kind = board.spec.kind
    due = slot.start <= now
    room = board.calendar.room(now, shares[0], (slot.start, slot.end, slot.units))
    if not due and room[0][1] < shares[0]:
        return None
    deadline = state.waiting[0].deadline_ns
    most = min(state.waiting_items, lane.max_batch(kind))
    least = max(1, min(most, slot.items))  # what is promised for this slot goes with it
    sizes = [_requests(state, n) for n in sorted({most, min(most, slot.capacity), least}, reverse=True)]
    order = [slot.units] if slot.units in shares else []
    order += [
        point.units
        for point in lane.points.get(board.spec.id, ())
        if point.units != slot.units and point.units in shares
    ]
    for units in order:
        until = _until(room, units)
        mine = due and units == slot.units
        for requests, items in sizes if until > now else ():
            took = lane.expected_ns(kind, units, items)
            end = now + took
            if end > until or end > deadline:
                continue
            if (mine and items <= slot.capacity) or (
                end + board.margin_ns(took, lane.spread_ns(took, 0.0)) <= deadline
            ):
                return Choice(slot, units, requests, items, took, "due" if due else "ahead of its time")
        if mine:
            requests, items = _requests(state, least)
            return Choice(slot, units, requests, items, lane.expected_ns(kind, units, items), "overdue")
    if due and not board.running:
        requests, items = _requests(state, least)
        units = max(shares)
        return Choice(slot, units, requests, items, lane.expected_ns(kind, units, items), "overdue")
    return None


def _until(room: Sequence[tuple[int, int]], units: int) -> int:
    """Until when so many units are free."""
    for at, free in room:
        if free < units:
            return at
    return _NEVER


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


def _widen(
    plan: Plan, state: ModelState, chosen: Choice, others: Iterable[Choice], device: DeviceState, now: int
) -> None:
    """Give a batch idle units beside its own, as far as it gains by them and nobody else has use for them.

    Parameters
    ----------
    plan : Plan
    state : ModelState
        Of its model.
    chosen : Choice
    others : iterable of Choice
        What else could start; looked at only where there are idle units.
    device : DeviceState
    now : int
    """
    slot, lane = chosen.slot, plan.lanes[chosen.slot.model]
    room = slot.board.calendar.room(now, chosen.units + 1, (slot.start, slot.end, slot.units))
    spare = min([free for at, free in room if at < now + chosen.ns])
    shares = [units for units in _shares(state, device) if chosen.units < units <= spare]
    if not shares:
        return
    limit = chosen.units * chosen.ns * (1.1 + 4 * max(0.0, 1 - plan.budget.load))
    kind = slot.board.spec.kind
    times = [(units, lane.expected_ns(kind, units, chosen.items)) for units in shares]
    if not any(took < chosen.ns and took * units <= limit for units, took in times):
        return
    spare -= sum([other.units for other in others if other.slot.model != slot.model])
    for units, took in times:
        if units <= spare and took < chosen.ns and took * units <= limit:
            chosen.units, chosen.ns, chosen.reason = units, took, "with idle units"
