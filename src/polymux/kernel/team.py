"""The threads that a parallel Python kernel is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Team(Protocol):
    """One thread on each core of the share that a task runs on, the caller's included.

    A kernel made with ``parallel=True`` gets it as the keyword ``team``.
    """

    @property
    def size(self) -> int:
        """Number of threads, 1 or more."""
        ...

    def parallel_for(self, n: int, body: Callable[[int, int], object], *, align: int = 1) -> None:
        """Call ``body(begin, end)`` for ranges that cover ``range(n)`` and begin at multiples of `align`."""
        ...
