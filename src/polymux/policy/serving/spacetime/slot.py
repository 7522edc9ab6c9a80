"""A batch that is reserved in a calendar, and the device with its calendar."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from polymux.core.serving.model import ModelName, ServingDevice
from polymux.policy.serving.spacetime.calendar import Calendar

NO_DEADLINE_NS = 1 << 62


@dataclass(slots=True, eq=False)
class Slot:
    """A batch to come: when, where, on how many units, for how many items.

    Parameters
    ----------
    model : ModelName
    board : Board
    units : int
    start, end : int, ns
        What the calendar has for it.
    capacity : int
        Items for which the time suffices.
    items : int
        Promised so far; 0: it is kept for requests that are expected.
    deadline : int, ns
        The earliest of what is promised, or expected.
    """

    model: ModelName
    board: Board
    units: int
    start: int
    end: int
    capacity: int
    items: int = 0
    deadline: int = NO_DEADLINE_NS


@dataclass(slots=True, eq=False)
class Running:
    """A batch that runs, with what the calendar has for it."""

    model: ModelName
    units: int
    items: int
    start: int
    end: int


@dataclass(slots=True, eq=False)
class Board:
    """A device: its calendar, the slots in it by their start, and what runs."""

    spec: ServingDevice
    calendar: Calendar
    slots: list[tuple[int, int, Slot]] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    made: int = 0

    def reserve(self, slot: Slot) -> None:
        """Enter a slot."""
        self.calendar.take(slot.start, slot.end, slot.units)
        self.made += 1
        insort(self.slots, (slot.start, self.made, slot))

    def release(self, slot: Slot) -> None:
        """Strike a slot out."""
        self.calendar.give(slot.start, slot.end, slot.units)
        index = bisect_left(self.slots, (slot.start,))
        while self.slots[index][2] is not slot:
            index += 1
        del self.slots[index]

    def advance(self, now: int) -> None:
        """Forget the past, and expect batches that last longer than planned to go on for a part of that."""
        for batch in self.running:
            if batch.end + (batch.end - batch.start >> 5) < now:
                more = now + max(1, (now - batch.start) // 4)
                self.calendar.take(max(batch.end, self.calendar.times[0]), more, batch.units)
                batch.end = more
        self.calendar.advance(now)
