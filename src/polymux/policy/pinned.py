"""Pinned: every queue runs on one device, chosen by the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from polymux.core.decision import Decision, Reject
from polymux.core.event import Event
from polymux.core.ids import DeviceId, StreamId
from polymux.core.snapshot import QueueView, Snapshot, StreamView
from polymux.policy.assignment import AssignmentPolicy


class Pinned(AssignmentPolicy):
    """Put every queue that names no device on one device: ``pinned=DEVICE``, without it the first that was added.

    Parameters
    ----------
    device : DeviceId, optional
        Queues are refused while it was never there; while it is lost they run on the first device that works.

    Notes
    -----
    Within the device, the stream with the fewest bound queues is taken. O(devices + streams) per queue.
    """

    name = "pinned"

    def __init__(self, device: DeviceId | None = None) -> None:
        self._device = device

    @classmethod
    def make(cls, option: str = "") -> Self:
        """Build the policy from ``pinned=DEVICE``, or from ``pinned`` alone."""
        return cls(DeviceId(option)) if option else cls()

    def wanted(self, snapshot: Snapshot, queue: QueueView) -> DeviceId | None:
        """Name the queue's own device, else the policy's, else the first that works."""
        own = super().wanted(snapshot, queue)
        if own is not None:
            return own
        working = [device for device, view in snapshot.devices.items() if view.lost is None]
        return self._device if self._device in working else next(iter(working), None)

    def place(
        self, snapshot: Snapshot, streams: dict[StreamId, StreamView], queue: QueueView, event: Event
    ) -> Decision:
        """Bind a waiting queue, or refuse it when the policy's device was never there."""
        if self._device is not None and self._device not in snapshot.devices and queue.pinned is None:
            message = (
                f"the policy pins queues to {self._device!r}, which this server does not have; devices:"
                f" {snapshot.describe_devices()}. Start the server with --policy pinned=DEVICE for one of these"
            )
            return Reject(queue.id, message, reason="the policy's device was never there")
        return super().place(snapshot, streams, queue, event)

    def choose(
        self,
        queue: QueueView,  # noqa: ARG002
        streams: Sequence[StreamView],
        snapshot: Snapshot,  # noqa: ARG002
    ) -> tuple[StreamView, str]:
        """Pick the stream with the fewest bound queues; the turn decides between equals."""
        chosen = min(streams, key=lambda stream: (stream.queues, stream.turn, stream.rank))
        return chosen, f"{chosen.id} has the fewest queues ({chosen.queues})"
