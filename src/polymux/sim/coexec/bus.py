"""Copies on a bus: one at a time in each direction, and whoever would wait longest for it goes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Copy:
    """A copy that waits or is under way.

    Parameters
    ----------
    seconds : float, s
    need : callable
        Returns when, in ns, whoever waits for it has nothing else to do; the smallest goes first.
    rank : int
        Among those that need it alike: the order of the plan.
    begun : callable
        Called with the time, in ns, when it begins.
    ended : callable
        Called with the time, in ns, when it has ended.
    """

    seconds: float
    need: Callable[[], int]
    rank: int
    begun: Callable[[int], None]
    ended: Callable[[int], None]


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
    _busy: bool = False

    def add(self, copy: Copy, now: int) -> None:
        """Let a copy wait for its turn."""
        self._waiting.append(copy)
        self._next(now)

    def _next(self, now: int) -> None:
        if self._busy or not self._waiting:
            return
        copy = min(self._waiting, key=lambda its: (its.need(), its.rank))
        self._waiting.remove(copy)
        self._busy = True
        copy.begun(now)

        def end(then: int) -> None:
            self._busy = False
            copy.ended(then)
            self._next(then)

        self.at(now + round(copy.seconds * 1e9), end)
