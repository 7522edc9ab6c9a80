"""Whether a device works: counts its failures in a row, and says to whom it matters that it counts as lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

LOST_AFTER = 3
"""Failures in a row, of tasks and of copies, before a device counts as lost."""


class Health:
    """Of one device; used by all of its accelerator threads and by whoever copies its data.

    Attributes
    ----------
    told : callable
        Called once, with the reason, when the device counts as lost.
    lost : str or None
        Why it counts as lost.
    """

    def __init__(self) -> None:
        self.told: Callable[[str], None] = lambda _: None
        self.lost: str | None = None
        self._lock = threading.Lock()
        self._failures = 0
        self._holds: list[Callable[[], None]] = []

    def when_lost(self, hold: Callable[[], None]) -> None:
        """Have something called first when the device is lost."""
        self._holds.append(hold)

    def worked(self) -> None:
        """Note that it did something right."""
        if self._failures:
            with self._lock:
                self._failures = 0

    def failed(self, message: str) -> None:
        """Note that it failed, or that its driver did."""
        with self._lock:
            self._failures += 1
            if self._failures < LOST_AFTER or self.lost is not None:
                return
        self.lose(f"it failed {LOST_AFTER} times in a row, the last time with: {message}")

    def lose(self, reason: str) -> None:
        """Count it as lost from now on: nothing is started there any more, and the scheduler hears of it."""
        with self._lock:
            if self.lost is not None:
                return
            self.lost = reason
        for hold in self._holds:
            hold()
        self.told(reason)
