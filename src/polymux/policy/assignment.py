"""What all policies share that bind each queue to one stream until something happens to it.

Memory is taken on a device only when a task runs there, so a queue is bound when it opens. It then moves

- to the device that its `target` names, when a migration was asked for;
- to a *helper* accelerator, when its device lacks the kernel of its next task (`KernelMissing`), and home again
  when that pays (`polymux.policy.home`);
- elsewhere, when its device is lost.

A queue's pin is stronger than all of these. Which stream it gets among those allowed is the policy's own choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self

from polymux.core.decision import Bind, Decision, FailAll, FailHead, Stay
from polymux.core.errors import InvalidRequest
from polymux.core.event import Event, HeldHead, HomePossible, KernelMissing
from polymux.core.ids import DeviceId, StreamId
from polymux.core.snapshot import QueueState, QueueView, Snapshot, StreamView
from polymux.core.status import TaskStatus
from polymux.policy.home import goes_home

Streams = Mapping[StreamId, StreamView]


class AssignmentPolicy(ABC):
    """Binds queues to the streams that `choose` picks."""

    name: ClassVar[str]

    @classmethod
    def make(cls, option: str = "") -> Self:
        """Build the policy from the text after ``name=``; most take none.

        Raises
        ------
        InvalidRequest
            For an option that the policy does not take.
        """
        if option:
            raise InvalidRequest(
                f"policy {cls.name!r} takes no option, given {option!r}; write just {cls.name}"
            )
        return cls()

    @abstractmethod
    def choose(
        self, queue: QueueView, streams: Sequence[StreamView], snapshot: Snapshot
    ) -> tuple[StreamView, str]:
        """Pick one of `streams` (never empty) for a queue and say why.

        ``snapshot.streams`` holds all streams that work, with the choices that were made about other queues just now.
        Equal choices are to be decided by `turn` and `rank`, so that they are the same in every run.
        """

    def takes(self, snapshot: Snapshot, queue: QueueView, device: DeviceId) -> bool:  # noqa: ARG002
        """Whether a queue may be placed on a device that its pin allows; any, unless a policy says otherwise."""
        return True

    def wanted(self, snapshot: Snapshot, queue: QueueView) -> DeviceId | None:
        """Name the only device whose streams a waiting queue may get; None: any that works."""
        if queue.target is not None:
            return queue.target
        if queue.pinned is not None:
            return queue.pinned
        home = snapshot.devices.get(queue.home) if queue.home is not None else None
        return home.spec.id if home is not None and home.lost is None else None

    def decide(self, snapshot: Snapshot, event: Event, now: int) -> list[Decision]:  # noqa: ARG002
        """Answer one event; see `Policy.decide`."""
        decisions: list[Decision] = []
        if snapshot.waiting:
            streams = dict(snapshot.streams)
            seen = replace(snapshot, streams=streams)
            decisions += [
                self.place(seen, streams, snapshot.queues[queue], event) for queue in snapshot.waiting
            ]
        if isinstance(event, HeldHead):
            queue = snapshot.queues.get(event.queue)
            if queue is not None and queue.state is QueueState.HELD:
                decisions.append(self._direct(snapshot, queue, event))
        return decisions

    def weight(self, queue: QueueView, stream: StreamView) -> int:  # noqa: ARG002
        """Give the weight that a queue gets on a stream; its session's own."""
        return queue.weight

    def place(
        self,
        snapshot: Snapshot,
        streams: dict[StreamId, StreamView],
        queue: QueueView,
        event: Event,  # noqa: ARG002
    ) -> Decision:
        """Bind a waiting queue, or fail its tasks when no device that works may run them.

        Notes
        -----
        `streams` is this call's own copy of ``snapshot.streams``; the choice is entered, so that several queues that
        are placed by one event do not all get the same stream.
        """
        device = self.wanted(snapshot, queue)
        allowed = list(streams.values()) if device is None else streams_of(snapshot, streams, device)
        if queue.target is None:
            allowed = [stream for stream in allowed if self.takes(snapshot, queue, stream.device)]
        if not allowed:
            message = _why_stranded(snapshot, queue)
            return FailAll(queue.id, TaskStatus.NO_DEVICE, message, reason="no device that may run it works")
        stream, why = self.choose(queue, allowed, snapshot)
        streams[stream.id] = stream._replace(
            queues=stream.queues + 1,
            turn=1 + max(other.turn for other in streams.values()),
            memory_nbytes=stream.memory_nbytes + queue.memory_nbytes,
        )
        if device is not None:
            why = f"{_why_device(queue, device)}; there, {why}"
        return Bind(queue.id, stream.id, why, self.weight(queue, stream))

    def _direct(self, snapshot: Snapshot, queue: QueueView, event: HeldHead) -> Decision:
        match event:
            case KernelMissing():
                return self._help(snapshot, queue, event)
            case HomePossible():
                return self._go_home(snapshot, queue, event)
        return self._follow_wish(snapshot, queue, event.device)

    def _help(self, snapshot: Snapshot, queue: QueueView, event: KernelMissing) -> Decision:
        if queue.device in event.devices:
            return Stay(queue.id, reason=f"{queue.device} has kernel {event.kernel} by now")
        having = [device for device in event.devices if device in snapshot.devices]
        working = [
            device
            for device in having
            if snapshot.devices[device].lost is None and self.takes(snapshot, queue, device)
        ]
        if queue.pinned is not None or not working:
            message = _why_no_helper(snapshot, queue, event, working)
            return FailHead(queue.id, TaskStatus.NO_DEVICE, message, reason="nobody may run its head task")
        if queue.home in working:
            return self._send(
                snapshot, queue, [queue.home], f"kernel {event.kernel} is missing here, home has it"
            )
        where = f"kernel {event.kernel} is missing on {queue.device}, others have it"
        return self._send(snapshot, queue, working, where)

    def _go_home(self, snapshot: Snapshot, queue: QueueView, event: HomePossible) -> Decision:
        if queue.home is None:
            return Stay(queue.id, reason="it is at home")
        lost = snapshot.devices[queue.home].lost
        if lost is not None:
            return Stay(queue.id, reason=f"its home {queue.home} was lost: {lost}")
        goes, reason = goes_home(queue, event)
        return self._send(snapshot, queue, [queue.home], reason) if goes else Stay(queue.id, reason=reason)

    def _follow_wish(self, snapshot: Snapshot, queue: QueueView, device: DeviceId) -> Decision:
        if queue.pinned not in (None, device):
            return Stay(queue.id, reason=f"it is pinned to {queue.pinned}")
        if not streams_of(snapshot, snapshot.streams, device):
            return Stay(queue.id, reason=f"its next task wishes for {device}, which does not work")
        if not self.takes(snapshot, queue, device):
            return Stay(queue.id, reason=f"its next task wishes for {device}, which cannot take its data")
        return self._send(snapshot, queue, [device], f"its next task wishes for {device}")

    def _send(self, snapshot: Snapshot, queue: QueueView, devices: Sequence[DeviceId], why: str) -> Decision:
        """Bind a queue whose head is held to a stream of one of `devices`, which work."""
        streams = [s for device in devices for s in streams_of(snapshot, snapshot.streams, device)]
        stream, choice = self.choose(queue, streams, snapshot)
        return Bind(queue.id, stream.id, f"{why}; {choice}", self.weight(queue, stream))


def streams_of(snapshot: Snapshot, streams: Streams, device: DeviceId) -> list[StreamView]:
    """List the streams of `device` by number; none when it is lost or was never there."""
    view = snapshot.devices.get(device)
    return [] if view is None or view.lost is not None else [streams[stream] for stream in view.streams]


def _why_device(queue: QueueView, device: DeviceId) -> str:
    if device == queue.target:
        return f"it moves to {device}"
    if device == queue.pinned:
        return f"it is pinned to {device}"
    return f"{device} is where it belongs"


def _why_stranded(snapshot: Snapshot, queue: QueueView) -> str:
    devices = snapshot.describe_devices()
    if any(view.lost is None and queue.pinned in (None, device) for device, view in snapshot.devices.items()):
        return (
            f"the queue was opened for {queue.memory_nbytes} bytes of data, for which no device that works has the"
            f" memory; devices: {devices}. Repair or add a larger device, the queue goes on by itself"
        )
    if queue.pinned is None:
        return f"no device works; devices: {devices}. Repair or add a device, the queue goes on by itself"
    return (
        f"the queue is pinned to {queue.pinned}, which does not work; devices: {devices}."
        " Open a queue without a pin, or pinned to a device that works"
    )


def _why_no_helper(
    snapshot: Snapshot, queue: QueueView, event: KernelMissing, working: Sequence[DeviceId]
) -> str:
    if working:
        return (
            f"kernel {event.kernel!r} has no implementation for {queue.device}, to which the queue is pinned;"
            f" it has one for {', '.join(working)}. Submit it to a queue without a pin, or pinned to one of these"
        )
    if event.devices:
        return (
            f"kernel {event.kernel!r} has implementations for {', '.join(event.devices)} only, which do not work;"
            f" devices: {snapshot.describe_devices()}"
        )
    return (
        f"kernel {event.kernel!r} has no implementation for any device here; devices:"
        f" {snapshot.describe_devices()}. Register an implementation for one of their APIs"
    )
