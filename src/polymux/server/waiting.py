"""Who waits for buffers or for memory, and who may overtake whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polymux.server.placement import HOST, Key, Want

PASSES = 32
"""How many younger tasks may overtake one that waits."""

Relieve = Callable[[], bool]


@dataclass(slots=True, eq=False)
class Waiter:
    """A task that waits until all of its buffers can be at one place."""

    location: int
    keys: frozenset[Key]
    also: Sequence[Want] = ()
    """What it takes as well where that is there and nobody waits for it."""
    passed: int = 0

    def at_hand(self, waiting: Sequence[Waiter], is_there: Callable[[Want], bool]) -> list[Want]:
        """What it takes as well now."""
        if not self.also:
            return []
        awaited = {key for other in waiting for key in other.keys}
        return [want for want in self.also if want.home.key not in awaited and is_there(want)]

    def elders(self, waiting: Sequence[Waiter]) -> list[Waiter]:
        """Those of the waiting ones that came before it, and that may have to wait for what it takes."""
        before = waiting[: waiting.index(self)] if self in waiting else waiting
        return [elder for elder in before if self._competes_with(elder)]

    def _competes_with(self, other: Waiter) -> bool:
        return self.location == other.location != HOST or not self.keys.isdisjoint(other.keys)
