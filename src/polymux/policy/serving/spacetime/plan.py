"""The plan: slots of all models in the calendars of all devices, and how a place is found for one more."""

from __future__ import annotations

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName
from polymux.policy.serving.spacetime.fairness import divide
from polymux.policy.serving.spacetime.lane import Lane, Point
from polymux.policy.serving.spacetime.slot import Board, Slot

_NEVER = 1 << 62
_QUIET, _BUSY = 0.15, 0.45
"""Parts of the devices that are demanded: up to the first, batches start as soon as possible; from the second on, as
late as they may."""
_PACKED = 0.9
"""What models may reserve together of the devices, so that slots of many shapes find a place in the calendar."""


class Plan:
    """Slots, calendars and lanes.

    Parameters
    ----------
    boards : dict of DeviceId to Board
    lanes : dict of ModelName to Lane
    """

    def __init__(self) -> None:
        self.boards: dict[DeviceId, Board] = {}
        self.lanes: dict[ModelName, Lane] = {}
        self.load = 0.0
        """Part of the devices that is demanded, at the cheapest points."""
        self.patience = 0.0
        """0: batches start as soon as possible; 1: when they are full or have to."""
        self.version = 0
        """Grows when room is made: what was refused before may be possible now."""

    # ---- places for batches ----

    def place(self, lane: Lane, now: int, deadline: int, items: int) -> tuple[Slot | None, int]:
        """Reserve a batch that ends before `deadline`.

        Parameters
        ----------
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
        before = lane.slots[-1].start if lane.slots else lane.last_start
        earliest = now
        if lane.limited:
            earliest = max(now, before + int(lane.period_ns))
        target = max(earliest, before + int(lane.period_ns * self.patience))
        soonest = _NEVER
        room = lane.headroom
        for whole, kept in ((True, room), (True, 0.0), (False, 0.0)) if room else ((True, 0.0), (False, 0.0)):
            for device_id, points in lane.points.items():
                board = self.boards[device_id]
                board.advance(now)
                for point in points:
                    made, end = self._try(
                        lane, board, point, now, earliest, target, deadline, items, whole, kept
                    )
                    if made is not None:
                        self.enter(lane, made)
                        return made, end
                    soonest = min(soonest, end)
        return None, soonest

    def _try(
        self, lane: Lane, board: Board, point: Point, now: int, earliest: int, target: int, deadline: int,
        items: int, whole: bool, kept: float,
    ) -> tuple[Slot | None, int]:  # fmt: skip
        calendar, units = board.calendar, point.units + int(kept * board.spec.units)
        if units > board.spec.units:
            return None, _NEVER
        batch, took = point.batch, point.ns
        if not whole or batch < items:
            if whole or batch == max(1, items):
                return None, _NEVER
            batch = max(1, items, batch // 2)
            took = lane.expected_ns(board.spec.kind, point.units, batch)
        if lane.slots:  # batches of a model end in the order of their starts, as its requests wait in order
            earliest = max(earliest, lane.slots[-1].start, lane.slots[-1].end - took)
        latest = deadline - took - lane.margin_ns(took, deadline - now)
        wished = min(target, latest)
        start = calendar.find_last(units, took, earliest, wished) if wished > earliest else -1
        if start < 0:
            start = calendar.find(units, took, max(earliest, wished))
        end = start + took
        end += lane.margin_ns(took, end - now)
        if end > deadline and target > earliest:
            start = calendar.find(units, took, earliest)
            end = start + took
            end += lane.margin_ns(took, end - now)
        if end > deadline:
            return None, end
        return Slot(lane.model.name, board, point.units, start, start + took, batch, items, deadline), end

    def enter(self, lane: Lane, slot: Slot) -> None:
        """Reserve a slot."""
        slot.board.reserve(slot)
        lane.slots.append(slot)

    def drop(self, lane: Lane, slot: Slot) -> None:
        """Strike a slot out; what is promised there is the caller's."""
        slot.board.release(slot)
        lane.slots.remove(slot)
        self.version += 1

    def join(self, lane: Lane, now: int, deadline: int, items: int) -> bool:
        """Promise a request a place in the last slot, which is made longer for it where there is room."""
        slot = lane.slots[-1]
        wanted = slot.items + items
        took = slot.end - slot.start
        if wanted > slot.capacity:
            kind = slot.board.spec.kind
            if wanted > lane.max_batch(kind):
                return False
            longer = lane.expected_ns(kind, slot.units, wanted)
            end = slot.start + longer
            if end > slot.end:
                if end + lane.margin_ns(longer, end - now) > min(slot.deadline, deadline):
                    return False
                if slot.board.calendar.least(slot.end, end) < slot.units:
                    return False
                slot.board.calendar.take(slot.end, end, slot.units)
                slot.end = end
            slot.capacity = wanted
        elif slot.end + lane.margin_ns(took, slot.end - now) > deadline:
            return False
        slot.items = wanted
        if deadline < slot.deadline or wanted == items:
            slot.deadline = deadline
        return True

    def settle(self, lane: Lane, items: int, now: int) -> None:
        """Spread what waits over the slots in their order; what has no slot gets one, late if need be."""
        for slot in lane.slots:
            slot.items = min(slot.capacity, items)
            items -= slot.items
        while items > 0 and lane.points:
            best = lane.best
            assert best is not None
            part = min(items, lane.max_batch(self.boards[next(iter(lane.points))].spec.kind))
            made, _ = self.place(lane, now, _NEVER, min(part, best.batch))
            if made is None:
                return
            made.deadline = now
            items -= made.items

    # ---- what is demanded ----

    def weigh(self) -> None:
        """Work out how much is demanded, how long to collect batches, and who gets how much when it is too much."""
        demands: dict[ModelName, float] = {}
        for name, lane in self.lanes.items():
            best = lane.best
            if best is not None and lane.rate_per_ns:
                demands[name] = lane.rate_per_ns * best.cost_ns
                lane.period_ns = best.batch / lane.rate_per_ns
            lane.limited = False
        capacity = len(self.boards) or 1
        self.load = sum(demands.values()) / capacity
        self.patience = min(1.0, max(0.0, (self.load - _QUIET) / (_BUSY - _QUIET)))
        if self.load <= _PACKED:
            self._keep(demands, capacity)
            return
        lanes = self.lanes
        given = divide(
            _PACKED * capacity,
            demands,
            {name: lanes[name].model.weight for name in demands},
            {name: lanes[name].model.priority for name in demands},
        )
        for name, part in given.items():
            best = lanes[name].best
            if part < 0.999 * demands[name] and best is not None:
                lane = lanes[name]
                lane.limited = True
                lane.period_ns = min(best.batch * best.cost_ns / part if part > 0 else 1e18, 1e18)
        self._keep(given, capacity)

    def _keep(self, given: dict[ModelName, float], capacity: int) -> None:
        """Have long deadlines leave room for shorter ones, whose requests are not there yet."""
        lanes = sorted((self.lanes[name].model.slo_ns, part, name) for name, part in given.items())
        short, total, index = 0.0, 0.0, 0
        for slo_ns, _, name in lanes:
            while index < len(lanes) and lanes[index][0] < 0.75 * slo_ns:
                total += lanes[index][1]
                index += 1
            short = total / capacity
            self.lanes[name].headroom = short
