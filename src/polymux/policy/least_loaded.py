"""Least loaded: each queue gets the stream with the least work."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.snapshot import QueueView, Snapshot, StreamView
from polymux.policy.assignment import AssignmentPolicy


class LeastLoaded(AssignmentPolicy):
    """Bind each queue to the stream with the least work, by the last load report and the queues bound since.

    Notes
    -----
    A stream's load is its share of all streams' busy time plus its share of all pending tasks: the first tells
    streams apart while there is room, the second once they are saturated. A queue that was bound (or released)
    after the report counts as an average one, so that many queues opened between two reports spread out. Without
    any report, or when nothing ran, the number of bound queues decides. O(streams) per queue.

    All arithmetic is on integers, so a replay on another machine compares equal.
    """

    name = "least_loaded"

    def choose(
        self,
        queue: QueueView,  # noqa: ARG002
        streams: Sequence[StreamView],
        snapshot: Snapshot,
    ) -> tuple[StreamView, str]:
        """Pick the stream with the lowest load; fewer bound queues, then the turn, decide between equals."""
        loads = [stream.load for stream in snapshot.streams.values()]
        busy_ns = max(1, sum(load.busy_ns for load in loads))
        pending = max(1, sum(load.pending for load in loads))
        queues = max(1, sum(load.queues for load in loads))

        def load(stream: StreamView) -> int:
            # busy / all busy + pending / all pending + 2 * bound since / all queues, over a common denominator
            bound_since = stream.queues - stream.load.queues
            return (
                stream.load.busy_ns * pending * queues
                + stream.load.pending * busy_ns * queues
                + 2 * bound_since * busy_ns * pending
            )

        chosen = min(streams, key=lambda stream: (load(stream), stream.queues, stream.turn, stream.rank))
        return chosen, (
            f"{chosen.id} has the least work: {chosen.load.pending} tasks pending and {chosen.load.busy_ns} ns busy"
            f" at the last report, {chosen.queues} queues bound"
        )
