"""When the parts of a simulated device are busy: pure bookkeeping, time is an argument."""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Timeline:
    """Resources that each serve one reservation at a time, first come, first served.

    Parameters
    ----------
    resources : int
        How many there are: compute units, or directions of a bus.
    """

    def __init__(self, resources: int) -> None:
        self._free_at_ns = [0] * resources
        self._lock = threading.Lock()

    def reserve(self, resources: Iterable[int], now_ns: int, duration_ns: int) -> int:
        """Reserve some resources together from the moment when all of them are free.

        Returns
        -------
        int
            When the reservation ends, in ns of the clock of `now_ns`.
        """
        chosen = list(resources)
        with self._lock:
            start_ns = max(now_ns, *(self._free_at_ns[resource] for resource in chosen))
            end_ns = start_ns + duration_ns
            for resource in chosen:
                self._free_at_ns[resource] = end_ns
        return end_ns
