"""Who waits for buffers or for memory, and who may overtake whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polymux.server.placement import HOST, Key

PASSES = 32
"""How many younger tasks may overtake one that waits."""

Relieve = Callable[[], bool]


@dataclass(slots=True, eq=False)
class Waiter:
    """A task that waits until all of its buffers can be at one place."""

    location: int
    keys: frozenset[Key]
    passed: int = 0

    def competes_with(self, other: Waiter) -> bool:
        """Whether one may have to wait for what the other one takes."""
        return self.location == other.location != HOST or not self.keys.isdisjoint(other.keys)
