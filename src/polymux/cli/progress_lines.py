"""Progress of long work where there is no terminal: a line every ten seconds, so that a log shows that it goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_EACH_S = 10.0


class ProgressLines:
    """Writes how far some work is to the standard error, no more often than every ten seconds.

    Parameters
    ----------
    now_s : callable, optional
        The clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._next_s = now_s() + _EACH_S

    def tell(self, what: str, done: int, total: int) -> None:
        """Write a line when it is time to."""
        now_s = self._now_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EACH_S
        print(f"{what}: {100 * done // max(1, total)} %", file=sys.stderr, flush=True)
