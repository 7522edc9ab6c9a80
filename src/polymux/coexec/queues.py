"""Queues pinned to streams, opened once and lent to one run at a time."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from polymux.client import Client, Queue
from polymux.coexec.units import Unit

_CAPACITY = 64


class Queues:
    """The queues of a session; usable from any thread.

    Parameters
    ----------
    client : Client
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._idle: defaultdict[str, list[Queue]] = defaultdict(list)

    @contextmanager
    def lend(self, units: Iterable[Unit]) -> Iterator[dict[Unit, Queue]]:
        """Have a queue for each unit meanwhile."""
        lent: dict[Unit, Queue] = {}
        try:
            for unit in units:
                lent[unit] = self._take(unit.place.stream)
            yield lent
        finally:
            with self._lock:
                for unit, queue in lent.items():
                    self._idle[unit.place.stream].append(queue)

    def close(self) -> None:
        """Close those that nobody has."""
        with self._lock:
            for queues in self._idle.values():
                for queue in queues:
                    queue.close()
            self._idle.clear()

    def _take(self, stream: str) -> Queue:
        with self._lock:
            if self._idle[stream]:
                return self._idle[stream].pop()
        return self._client.queue(f"coexec {stream}", stream=stream, capacity=_CAPACITY)
