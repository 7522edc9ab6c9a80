"""What policies share that move queues by themselves: when they look, and which moves pay.

They look at every tick of `TICK_NS` while queues do something, less often while none does, and not at all while none is
open. So that nothing thrashes, a queue moves only when all of this holds:

- it has been on its stream for `RESIDENCE_NS`, so it makes at most one move in that time;
- it is bound and not on a move already, belongs where it is (a queue at a helper waits there for its kernel), is not
  pinned elsewhere, its data fit there, and the device neither refused them nor lacked its kernel a moment ago;
- the stream time that the move gains in `HORIZON_NS` is at least two transfers, there and back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from polymux.core.decision import Decision, Migrate, Revoke, WakeAt
from polymux.core.event import Event, KernelMissing, LoadReported, QueueOpened, Tick
from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.core.snapshot import QueueState, QueueView, Snapshot, StreamView
from polymux.policy.activity import WHOLE, Activities
from polymux.policy.cost import needed_nbytes, transfer_ns
from polymux.policy.memory_aware import MemoryAware

TICK_NS = 20_000_000
IDLE_TICK_NS = 8 * TICK_NS
RESIDENCE_NS = 200_000_000
HORIZON_NS = 1_000_000_000
LACKING_NS = 10_000_000_000
"""A queue is not moved for so long to a device that lacked one of its kernels."""

MARGIN = WHOLE // 10
"""A stream must become this much less loaded, in permille of its time."""


@dataclass(frozen=True, slots=True)
class Move:
    """A queue, where it should go, and what that gains within the horizon, in ns of stream time."""

    queue: QueueView
    stream: StreamView
    gain_ns: int
    why: str


class Rebalancing(MemoryAware):
    """Places queues with memory in mind, and looks again at every tick."""

    def __init__(self) -> None:
        super().__init__()
        self.activities = Activities()
        self._wake_ns: int | None = None
        self._lacking: dict[QueueId, dict[DeviceId, int]] = {}

    @abstractmethod
    def rebalance(self, snapshot: Snapshot, now: int) -> Iterable[Decision]:
        """Decide about bound queues, by what `activities` tell about the interval that ended with the last tick."""

    def looks_at(self, event: Event) -> bool:  # noqa: ARG002
        """Whether to rebalance at an event that is no tick."""
        return False

    def decide(self, snapshot: Snapshot, event: Event, now: int) -> list[Decision]:
        """Answer one event; see `Policy.decide`."""
        if isinstance(event, LoadReported):
            self.activities.report(event)
        elif isinstance(event, QueueOpened):
            self._lacking.pop(event.queue, None)
        elif isinstance(event, KernelMissing):
            self._note_lack(snapshot, event, now)
        ticked = isinstance(event, Tick) and self.activities.tick(snapshot.queues, now) > 0
        decisions = super().decide(snapshot, event, now)
        if ticked or self.looks_at(event):
            decided = {getattr(decision, "queue", None) for decision in decisions}
            for decision in self.rebalance(snapshot, now):
                queue = getattr(decision, "queue", None)
                if queue not in decided:
                    decided.add(queue)
                    decisions.append(decision)
        return [*decisions, *self._wake_up(snapshot, now)]

    def able(self, snapshot: Snapshot, queue: QueueView, device: DeviceId, now: int) -> bool:
        """Whether a device can run a queue, as far as is known."""
        return (
            queue.pinned in (None, device)
            and needed_nbytes(snapshot, queue) <= snapshot.devices[device].spec.memory_nbytes
            and queue.barred.get(device, now) <= now
            and self._lacking.get(queue.id, {}).get(device, now) <= now
        )

    def may_move(self, snapshot: Snapshot, queue: QueueView, stream: StreamView, now: int) -> bool:
        """Whether a queue may go to a stream, whatever that gains."""
        return (
            queue.state is QueueState.BOUND
            and queue.home is None
            and queue.pinned_stream is None
            and queue.stream != stream.id
            and now - queue.bound_ns >= RESIDENCE_NS
            and self.able(snapshot, queue, stream.device, now)
        )

    def stands(self, snapshot: Snapshot, queue: QueueView) -> StreamId | None:
        """Name the stream whose load a queue is part of: while it moves to a device, one there; None: nowhere."""
        target = snapshot.devices.get(queue.target) if queue.target is not None else None
        if target is not None and target.lost is None:
            streams = [snapshot.streams[stream] for stream in target.streams]
            return min(streams, key=lambda stream: (stream.queues, stream.rank)).id
        return queue.stream if queue.drained and queue.stream in snapshot.streams else None

    def pays(self, snapshot: Snapshot, move: Move) -> bool:
        """Whether a move gains at least two transfers; one within a device costs nothing."""
        return move.gain_ns >= 2 * self._price_ns(snapshot, move)

    def carry_out(self, snapshot: Snapshot, move: Move) -> Decision:
        """Make a move: `Migrate` to another device, `Revoke` to be placed anew on this one."""
        why = f"{move.why}; it gains {move.gain_ns} ns, its data take {self._price_ns(snapshot, move)} ns"
        if move.stream.device == move.queue.device:
            return Revoke(move.queue.id, reason=why)
        return Migrate(move.queue.id, move.stream.device, reason=why)

    def _price_ns(self, snapshot: Snapshot, move: Move) -> int:
        if move.stream.device == move.queue.device:
            return 0
        data = snapshot.load_of(move.queue.id).data
        known_nbytes = sum(data.values())
        expected_nbytes = max(0, move.queue.memory_nbytes - known_nbytes)
        here = str(move.queue.device)
        return transfer_ns(snapshot, {**data, here: data.get(here, 0) + expected_nbytes}, move.stream.device)

    def _note_lack(self, snapshot: Snapshot, event: KernelMissing, now: int) -> None:
        queue = snapshot.queues.get(event.queue)
        if queue is not None and queue.device is not None:
            self._lacking.setdefault(queue.id, {})[queue.device] = now + LACKING_NS

    def _wake_up(self, snapshot: Snapshot, now: int) -> list[Decision]:
        """Ask for the next tick, unless one is on its way or nobody is there."""
        wait_ns = TICK_NS if self.activities.queues else IDLE_TICK_NS
        on_its_way = self._wake_ns is not None and now < self._wake_ns <= now + wait_ns
        if on_its_way or not snapshot.queues:
            return []
        self._wake_ns = now + wait_ns
        return [WakeAt(self._wake_ns, reason="it looks at the load again")]


def emptiest(streams: Iterable[StreamView], loads: Mapping[StreamId, int]) -> StreamView | None:
    """Find the stream with the least load; the fixed order decides between equals."""
    return min(
        streams, key=lambda stream: (loads.get(stream.id, 0), stream.queues, stream.rank), default=None
    )
