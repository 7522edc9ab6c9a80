"""The gate that a training job passes at every boundary: one word in memory, looked at and left alone.

The server sets the word when it wants the device. Reading it costs some hundred nanoseconds, so it may stand between
any two operations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic_ns

OPEN: Sequence[int] = (0,)
"""The word of a gate that nobody guards."""
SHUT: Sequence[int] = (1,)
"""The word of a gate that makes whoever comes next ask."""
_STEPS_REMEMBERED = 16


class Gate:
    """What every boundary calls, and how long the ways between boundaries are.

    Parameters
    ----------
    ask : callable
        Called at a boundary when the word is not 0; returns when the job may go on.

    Attributes
    ----------
    word : sequence of int
        One 32-bit word; 0: go on. Whoever guards the gate puts the right one here.

    Notes
    -----
    `check` costs less than 1 us while the word is 0.
    """

    __slots__ = (
        "_ask",
        "_last_ns",
        "_longest_in_step_ns",
        "_longest_ns",
        "_step_began_ns",
        "_steps_ns",
        "word",
    )

    def __init__(self, ask: Callable[[], None]) -> None:
        self.word: Sequence[int] = OPEN
        self._ask = ask
        self._last_ns = self._step_began_ns = monotonic_ns()
        self._longest_in_step_ns = 0
        self._longest_ns: deque[int] = deque(maxlen=_STEPS_REMEMBERED)
        self._steps_ns: deque[int] = deque(maxlen=_STEPS_REMEMBERED)

    def check(self) -> None:
        """Go on, or give way and go on when it is this job's turn again."""
        now = monotonic_ns()
        way = now - self._last_ns
        if way > self._longest_in_step_ns:
            self._longest_in_step_ns = way
        self._last_ns = now
        if self.word[0]:
            self._ask()
            waited = monotonic_ns() - now
            self._last_ns += waited
            self._step_began_ns += waited

    def begin(self) -> None:
        """Start the clock: the first step begins now."""
        self._last_ns = self._step_began_ns = monotonic_ns()
        self._longest_in_step_ns = 0

    def step(self) -> None:
        """Note that a step has ended: the longest way within it, and how long it took without waiting at the gate."""
        now = monotonic_ns()
        self._longest_ns.append(max(self._longest_in_step_ns, now - self._last_ns))
        self._steps_ns.append(now - self._step_began_ns)
        self._longest_in_step_ns = 0
        self._last_ns = self._step_began_ns = now

    @property
    def boundary_ns(self) -> int:
        """Longest time between two boundaries, in nanoseconds; 0 before the first step.

        Of the last steps the one that was disturbed least: a job that the operating system has stopped or put aside
        meanwhile has not run.
        """
        return min(self._longest_ns, default=0)

    @property
    def step_ns(self) -> int:
        """How long a step takes when nothing disturbs it, in nanoseconds; 0 before the first one."""
        return min(self._steps_ns, default=0)
