"""A batch that is reserved in a calendar, and the device with its calendar."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from math import sqrt

from polymux.core.serving.model import ModelName, ServingDevice
from polymux.policy.serving.spacetime.calendar import Calendar

NO_DEADLINE_NS = 1 << 62
_CERTAINTY, _CERTAINTY_LEAST, _CERTAINTY_MOST = 3.7, 3.2, 8.0
"""Standard deviations that are kept as a margin: in the beginning, at least and at most."""
_CERTAINTY_MORE, _CERTAINTY_LESS = 0.3, 0.0001
"""How the margin changes with each answer that is late and on time: both balance where 0.03 % are late."""
_LEAST_MARGIN = 0.002
_STEADY = 1e-4
"""Mean square deviations that are this part of the mean square time or less are no variation."""
_LOOK_AT = 32
_GAIN = 0.05
_SUDDEN = 2
"""A batch that takes this many times longer is a change, not variation; it delays others, whose margins are not to
blame."""
_SLIP_NS = 20_000
"""A slot that starts this much later than planned has slipped."""


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
    before_ns, spread_ns : float
        Standard deviations of its start and end: batches before it, and it itself, may take longer.
    full : int
        Items with which it is worth starting.
    number : int
        Slots that were entered later have larger ones.
    """

    model: ModelName
    board: Board
    units: int
    start: int
    end: int
    capacity: int
    items: int = 0
    deadline: int = NO_DEADLINE_NS
    before_ns: float = 0.0
    spread_ns: float = 0.0
    full: int = 0
    number: int = 0


@dataclass(slots=True, eq=False)
class Running:
    """A batch that runs, with what the calendar has for it."""

    model: ModelName
    units: int
    items: int
    start: int
    end: int
    planned: int
    deadline: int
    spread_ns: float


@dataclass(slots=True, eq=False)
class Board:
    """A device: its calendar, the slots in it by their start, and what runs.

    Parameters
    ----------
    spec : ServingDevice
    calendar : Calendar
    slots : list of (int, int, Slot)
        By start, then by number.
    running : list of Running
    squares, deviations : float
        Recent means of the squares of the times of batches, and of what they differed from the expected ones.
    certainty : float
        Standard deviations that are kept as a margin; learned from promises that were broken and kept.
    upset_until : int
        Until then promises may be broken because a batch took much too long.
    overdue : list of Running
        Batches that were found to last longer than planned, since this was last emptied.
    """

    spec: ServingDevice
    calendar: Calendar
    slots: list[tuple[int, int, Slot]] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    made: int = 0
    squares: float = 0.0
    deviations: float = 0.0
    certainty: float = _CERTAINTY
    upset_until: int = -1
    overdue: list[Running] = field(default_factory=list)

    def reserve(self, slot: Slot) -> None:
        """Enter a slot."""
        self.calendar.take(slot.start, slot.end, slot.units)
        self.made += 1
        slot.number = self.made
        insort(self.slots, (slot.start, self.made, slot))

    def release(self, slot: Slot) -> None:
        """Strike a slot out."""
        self.calendar.give(slot.start, slot.end, slot.units)
        index = bisect_left(self.slots, (slot.start,))
        while self.slots[index][2] is not slot:
            index += 1
        del self.slots[index]

    @property
    def typical_ns(self) -> float:
        """Standard deviation of the time of a batch here."""
        return sqrt(self.deviations)

    def before_ns(self, units: int, start: int) -> float:
        """Standard deviation of the time at which so many units get free, which is planned for `start`."""
        if self.deviations < _STEADY * self.squares:
            return 0.0
        calendar = self.calendar
        most = 0.0
        pending: list[Running | Slot] = [*self.running, *(slot for _, _, slot in self.slots[:_LOOK_AT])]
        for other in pending:
            left = other.spread_ns - (start - other.end) / self.certainty
            if other.end <= start and left > most and calendar.least(other.end - 1, other.end) < units:
                most = left
        return most

    def margin_ns(self, batch_ns: int, spread_ns: float) -> int:
        """What may be needed beyond the expected end of a batch whose end has this standard deviation."""
        return int(_LEAST_MARGIN * batch_ns + self.certainty * spread_ns)

    def measure(self, batch: Running, now: int) -> None:
        """Note that a batch ended."""
        expected_ns, took_ns = batch.planned - batch.start, now - batch.start
        if took_ns > _SUDDEN * expected_ns:
            self.upset_until = now + took_ns
            return
        off_ns = abs(took_ns - expected_ns)
        self.squares += _GAIN * (took_ns * float(took_ns) - self.squares)
        self.deviations += _GAIN * (off_ns * off_ns - self.deviations)
        if now <= batch.deadline:
            self.certainty = max(_CERTAINTY_LEAST, self.certainty - _CERTAINTY_LESS * batch.items)
        elif now > self.upset_until:
            self.certainty = min(_CERTAINTY_MOST, self.certainty + _CERTAINTY_MORE)

    def advance(self, now: int) -> None:
        """Forget the past; what lasts longer than planned goes on for a while, and what it delays is planned anew."""
        late = False
        for batch in self.running:
            passed = now - batch.start
            if batch.end + (passed >> 6) < now:
                more = now + max(passed >> 4, now - batch.planned)
                self.calendar.take(max(batch.end, self.calendar.times[0]), more, batch.units)
                batch.end = more
                late = True
                self.overdue.append(batch)
        self.calendar.advance(now)
        for start, _, slot in self.slots:
            if start + _SLIP_NS >= now:
                break
            late = late or slot.items > 0
        if late:
            self._replan(now)

    def _replan(self, now: int) -> None:
        """Give each slot, in their order, the earliest time that is not before its old one."""
        slots = sorted((slot for _, _, slot in self.slots), key=lambda slot: not slot.items)
        for slot in slots:
            self.calendar.give(slot.start, slot.end, slot.units)
        self.slots.clear()
        last: dict[ModelName, Slot] = {}
        for slot in slots:  # what is promised comes first
            took = slot.end - slot.start
            earliest = max(now, slot.start)
            before = last.get(slot.model)
            if before is not None:
                earliest = max(earliest, before.start, before.end - took)
            slot.start = self.calendar.find(slot.units, took, earliest)
            slot.end = slot.start + took
            last[slot.model] = slot
            self.reserve(slot)
