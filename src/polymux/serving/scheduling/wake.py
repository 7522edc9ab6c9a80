"""The times at which a policy wants to be asked again."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable

__all__ = ["WakeUps"]

_LONGEST_NS = 3_600_000_000_000


class WakeUps:
    """Calls a function at each of the times that were asked for.

    Parameters
    ----------
    clock : callable
        Monotonic time in ns.
    wake : callable
        Called once when one or several times have come.

    Notes
    -----
    The loop's timers have a resolution of 1 ms: a call may come that much late, never early.
    """

    def __init__(self, clock: Callable[[], int], wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._times: list[int] = []
        self._asked: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._closed = False

    def add(self, at_ns: int) -> None:
        """Ask for a call."""
        if at_ns not in self._asked and not self._closed:
            self._asked.add(at_ns)
            heapq.heappush(self._times, at_ns)
            self._arm()

    def close(self) -> None:
        """Call no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        first = self._times[0]
        if self._timer is not None:
            if self._timer_ns <= first:
                return
            self._timer.cancel()
        self._timer_ns = first
        delay_ms = max(1, math.ceil(min(_LONGEST_NS, first - self._clock()) / 1e6))
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1e3, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._clock()
        due = False
        while self._times and self._times[0] <= now:
            self._asked.discard(heapq.heappop(self._times))
            due = True
        if due:
            self._wake()
        if self._times and not self._closed and self._timer is None:
            self._arm()
