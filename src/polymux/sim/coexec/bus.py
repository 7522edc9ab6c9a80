"""Copies on a bus: one at a time in each direction, in slices, so that whoever needs his most goes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

SLICE_NS = 2_000_000
"""A longer copy lets others go first after each slice: as live, where chunk size and order are the only priority."""


@dataclass(slots=True)
class Copy:
    """A copy that waits or is under way.

    Parameters
    ----------
    left_ns : int, ns
        Time that it needs still.
    need : callable
        Returns when, in ns, whoever waits for it has nothing else to do.
    rank : int
        Of the unit: among those for whom it is time, the order of the plan.
    span : callable
        Called with begin and end, in ns, of each stretch in which it was copied.
    ended : callable
        Called with the time, in ns, when it has ended.
    """

    left_ns: int
    need: Callable[[], int]
    rank: int
    span: Callable[[int, int], None]
    ended: Callable[[int], None]

    def turn(self, now: int) -> tuple[int, int]:
        """Smallest first: those for whom it is time, by rank; then the others, by when it will be."""
        latest = self.need() - self.left_ns - 2 * SLICE_NS
        return (0, self.rank) if latest <= now else (1, latest)


@dataclass(slots=True)
class Channel:
    """One direction of a bus; both, where it is not duplex.

    Parameters
    ----------
    at : callable
        Asks to be called at a time in ns: ``at(time, call)``.
    """

    at: Callable[[int, Callable[[int], None]], None]
    _waiting: list[Copy] = field(default_factory=list)
    _now: Copy | None = None
    _since_ns: int = 0

    def add(self, copy: Copy, now: int) -> None:
        """Let a copy wait for its turn."""
        self._waiting.append(copy)
        if self._now is None:
            self._next(now)

    def _next(self, now: int) -> None:
        """Go on with the copy that is needed most."""
        if not self._waiting:
            self._now = None
            return
        first: dict[int, Copy] = {}
        for its in self._waiting:  # those of one unit in their order
            first.setdefault(its.rank, its)
        copy = min(first.values(), key=lambda its: its.turn(now))
        if copy is not self._now:
            if self._now is not None:
                self._now.span(self._since_ns, now)
            self._now, self._since_ns = copy, now
        slice_ns = min(copy.left_ns, SLICE_NS)
        self.at(now + slice_ns, lambda then: self._copied(copy, slice_ns, then))

    def _copied(self, copy: Copy, slice_ns: int, now: int) -> None:
        copy.left_ns -= slice_ns
        if copy.left_ns <= 0:
            self._waiting.remove(copy)
            self._now = None
            copy.span(self._since_ns, now)
            copy.ended(now)
        if self._now is copy or self._now is None:
            self._next(now)
