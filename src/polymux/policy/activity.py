"""What queues did of late: load reports gathered from tick to tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polymux.core.event import LoadReported
from polymux.core.ids import QueueId
from polymux.core.snapshot import QueueView

WHOLE = 1000
"""All of the time of one stream, in permille."""

HOLD_NS = 300_000_000
"""A queue that does nothing keeps its claim for so long."""


@dataclass(slots=True)
class Activity:
    """One queue that has something to do, or had until a moment ago.

    Parameters
    ----------
    demand : int
        How much of one stream it would use if nobody were in its way, in permille.
    busy_ns : int
        Time in which its tasks ran in the last interval between two ticks.
    pending : int
        Tasks that waited in it at the last report.
    last_ns : int
        When it was last seen to have something to do.
    """

    demand: int = 0
    busy_ns: int = 0
    pending: int = 0
    last_ns: int = 0


class Activities:
    """Every queue that is active, fed with load reports and ticks; costs what is active, not what is open."""

    def __init__(self) -> None:
        self.queues: dict[QueueId, Activity] = {}
        self._busy_ns: dict[QueueId, int] = {}
        self._pending: dict[QueueId, int] = {}
        self._since_ns: int | None = None

    def report(self, event: LoadReported) -> None:
        """Take a load report into account."""
        for queue, load in event.queues.items():
            self._busy_ns[queue] = self._busy_ns.get(queue, 0) + load.busy_ns
        self._pending = {queue: load.pending for queue, load in event.queues.items() if load.pending}

    def expect(self, queue: QueueId, now: int) -> None:
        """Count on a queue that was just opened to use a whole stream soon."""
        self.queues[queue] = Activity(WHOLE, last_ns=now)

    def tick(self, known: Mapping[QueueId, QueueView], now: int) -> int:
        """End an interval and return its length in ns; 0: it is too short to say anything."""
        elapsed_ns = 0 if self._since_ns is None else now - self._since_ns
        if self._since_ns is not None and elapsed_ns <= 0:
            return 0
        self._since_ns = now
        busy_ns, self._busy_ns = self._busy_ns, {}
        if not elapsed_ns:
            return 0
        for queue in (*busy_ns, *self._pending):  # no set: its order would differ in a replay
            self.queues.setdefault(queue, Activity(last_ns=now))
        for queue in [queue for queue in self.queues if queue not in known]:
            del self.queues[queue]
        for queue, activity in list(self.queues.items()):
            self._update(queue, activity, busy_ns.get(queue, 0), elapsed_ns, now)
        return elapsed_ns

    def _update(self, queue: QueueId, activity: Activity, busy_ns: int, elapsed_ns: int, now: int) -> None:
        activity.busy_ns, activity.pending = busy_ns, self._pending.get(queue, 0)
        if activity.busy_ns or activity.pending:
            activity.last_ns = now
        elif now - activity.last_ns > HOLD_NS:
            del self.queues[queue]
            return
        used = min(WHOLE, busy_ns * WHOLE // elapsed_ns)
        newest = WHOLE if activity.pending else min(WHOLE, used + used // 4)
        activity.demand = max(newest, activity.demand - activity.demand // 8)
