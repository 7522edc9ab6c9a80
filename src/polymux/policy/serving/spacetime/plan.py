"""The plan: slots of all models in the calendars of all devices."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, Request
from polymux.policy.serving.spacetime.budget import Budget
from polymux.policy.serving.spacetime.lane import Lane
from polymux.policy.serving.spacetime.slot import Board, Slot


class Plan:
    """Slots, calendars and lanes.

    Attributes
    ----------
    boards : dict of DeviceId to Board
    lanes : dict of ModelName to Lane
    budget : Budget
    version : int
        Grows when room is made: what was refused before may be possible now.
    unweighed : bool
        Whether models or shares have changed since the devices were divided.
    news : bool
        Whether something may start, or has to be waited for, that was not there when this was set to False.
    """

    def __init__(self) -> None:
        self.boards: dict[DeviceId, Board] = {}
        self.lanes: dict[ModelName, Lane] = {}
        self.budget = Budget()
        self.version = 0
        self.news = False
        self.unweighed = False

    def weigh(self) -> None:
        """Divide the devices anew."""
        self.unweighed = False
        self.budget.weigh(self.lanes.values(), len(self.boards))

    def enter(self, lane: Lane, slot: Slot) -> None:
        """Reserve a slot, the last of its model."""
        slot.board.reserve(slot)
        lane.slots.append(slot)
        if lane.limited:
            used_ns = (slot.end - slot.start) * slot.units / slot.board.spec.units
            lane.paid_until = int(max(lane.paid_until, slot.start - lane.model.slo_ns) + used_ns / lane.part)
        self.news = True

    def drop(self, lane: Lane, slot: Slot) -> None:
        """Strike a slot out; what is promised there is the caller's."""
        slot.board.release(slot)
        lane.slots.remove(slot)
        self.version += 1

    def join(self, lane: Lane, now: int, deadline: int, items: int) -> bool:
        """Promise a request a place in the last slot, which is made longer for it where there is room."""
        slot = lane.slots[-1]
        wanted = slot.items + items
        behind = now - slot.start
        if behind > 0 and not slot.items:
            return False
        if wanted > slot.capacity:
            kind = slot.board.spec.kind
            if wanted > lane.max_batch(kind):
                return False
            longer = lane.expected_ns(kind, slot.units, wanted)
            end = slot.start + longer
            if end > slot.end:
                spread_ns = lane.spread_ns(longer, slot.before_ns)
                if max(behind, 0) + end + slot.board.margin_ns(longer, spread_ns) > min(
                    slot.deadline, deadline
                ):
                    return False
                if slot.board.calendar.least(slot.end, end) < slot.units:
                    return False
                slot.board.calendar.take(slot.end, end, slot.units)
                slot.end, slot.spread_ns = end, spread_ns
            slot.capacity = wanted
        elif (
            max(behind, 0) + slot.end + slot.board.margin_ns(slot.end - slot.start, slot.spread_ns) > deadline
        ):
            return False
        enough = self.budget.patience * slot.capacity
        if slot.items < enough <= wanted or not slot.items:
            self.news = True
        if deadline < slot.deadline or not slot.items:
            slot.deadline = deadline
        slot.items = wanted
        if wanted == slot.full:
            self._hasten(lane, slot, now)
        return True

    def _hasten(self, lane: Lane, slot: Slot, now: int) -> None:
        """Have a batch that is full start as soon as there is room."""
        board = slot.board
        took = slot.end - slot.start
        earliest = now
        if len(lane.slots) > 1:
            before = lane.slots[-2]
            earliest = max(now, before.start, before.end - took)
        if slot.start <= earliest:
            return
        units = slot.units + (0 if lane.in_bursts else int(lane.headroom * board.spec.units))
        if units > board.spec.units:
            return
        board.release(slot)
        start = board.calendar.find(units, took, earliest)
        if start < slot.start:
            slot.start, slot.end = start, start + took
            slot.before_ns = board.before_ns(slot.units, start)
            slot.spread_ns = lane.spread_ns(took, slot.before_ns)
        board.reserve(slot)
        self.news = True

    def insert(self, lane: Lane, waiting: Sequence[Request], request: Request, now: int) -> bool:
        """Promise a place to a request whose deadline lies before those of others that wait: they all move back."""
        slots = lane.slots
        if not slots or slots[-1].items + request.items > slots[-1].capacity:
            return False
        pending = sorted([*waiting, request], key=lambda other: other.deadline_ns)
        taken = 0
        for slot in slots:
            room = slot.capacity
            earliest = (
                slot.end
                + max(0, now - slot.start)
                + slot.board.margin_ns(slot.end - slot.start, slot.spread_ns)
            )
            while taken < len(pending) and pending[taken].items <= room:
                if pending[taken].deadline_ns < earliest:
                    return False
                room -= pending[taken].items
                taken += 1
        if taken < len(pending):
            return False
        slots[-1].items += request.items
        slots[0].deadline = min(slots[0].deadline, request.deadline_ns)
        self.news = True
        return True
