"""Round robin: each queue gets the stream whose turn is longest ago."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.snapshot import QueueView, Snapshot, StreamView
from polymux.policy.assignment import AssignmentPolicy


class RoundRobin(AssignmentPolicy):
    """Deal queues out to the streams in turn, over all devices; needs no measurements.

    Notes
    -----
    Turns are counted per stream, so a device that is lost or full of pinned queues is skipped without losing its
    place, and one that joins later gets its first turn at once but no more than its share afterwards. A pinned queue
    counts as a turn of the stream that it gets. O(streams) per queue.
    """

    name = "round_robin"

    def choose(
        self,
        queue: QueueView,  # noqa: ARG002
        streams: Sequence[StreamView],
        snapshot: Snapshot,  # noqa: ARG002
    ) -> tuple[StreamView, str]:
        """Pick the stream that got a queue longest ago, new ones first."""
        chosen = min(streams, key=lambda stream: (stream.turn, stream.rank))
        return chosen, f"it is {chosen.id}'s turn"
