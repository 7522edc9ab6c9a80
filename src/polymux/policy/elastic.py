"""Elastic: an application uses what devices those of higher priority leave, and gives them up when these come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polymux.core.decision import Decision
from polymux.core.event import DeviceAdded, DeviceLost, Event, QueueClosed, QueueOpened
from polymux.core.ids import StreamId
from polymux.core.snapshot import QueueView, Snapshot, StreamView
from polymux.policy.activity import WHOLE
from polymux.policy.rebalancing import HORIZON_NS, MARGIN, Move, Rebalancing, emptiest

REFRESH_NS = 5_000_000
"""What many openings in a row are decided by is no older than this."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Streams that go to one priority together, since they share their compute units."""

    streams: tuple[StreamView, ...]

    @property
    def capacity(self) -> int:
        """Queues that can run at once, in permille."""
        return WHOLE * len(self.streams)


class Elastic(Rebalancing):
    """Give devices to the queues of highest priority, as many as they can use, and what is left to the next ones.

    Notes
    -----
    At each tick, and when a queue opens or closes or a device joins, every priority claims devices, the highest
    first: those where most of its work is already, then those that cost the fewest others their place, until all its
    active queues have a stream of their own. Streams with disjoint parts of a device are claimed one by one, others
    with their whole device. Then queues move, within the rules of `polymux.policy.rebalancing`:

    - off what a higher priority claims, to what their own claims (where it could claim nothing they stay, and run in
      the gaps: a stream takes the task of highest priority first);
    - from the fullest to the emptiest stream that their priority claims, so that an application grows on to idle
      devices, and back when one of higher priority is gone or has had nothing to do for a while.

    A queue is what moves, so an application grows over as many streams as it has queues.
    """

    name = "elastic"

    def __init__(self) -> None:
        super().__init__()
        self._now = 0
        self._looked_ns: int | None = None
        self._claimed: dict[int, frozenset[StreamId]] = {}
        self._loaded: dict[int, dict[StreamId, int]] = {}
        self._unclaimed = False

    def decide(self, snapshot: Snapshot, event: Event, now: int) -> list[Decision]:
        """Answer one event; see `Policy.decide`."""
        self._now = now
        if isinstance(event, DeviceAdded | DeviceLost):
            self._looked_ns = None
        if isinstance(event, QueueOpened) and event.queue in snapshot.queues:
            self.activities.expect(event.queue, now)
        return super().decide(snapshot, event, now)

    def looks_at(self, event: Event) -> bool:
        """Rebalance when somebody comes or goes, unless many do: the next tick is not far."""
        recent = self._looked_ns is not None and self._now - self._looked_ns < REFRESH_NS
        return isinstance(event, QueueOpened | QueueClosed | DeviceAdded) and not recent

    def choose(
        self, queue: QueueView, streams: Sequence[StreamView], snapshot: Snapshot
    ) -> tuple[StreamView, str]:
        """Pick the stream with the least work among those that the queue's priority claims."""
        recent = self._looked_ns is not None and self._now - self._looked_ns < REFRESH_NS
        if not recent or queue.priority not in self._claimed or self._claims_more(queue.priority):
            self._look(snapshot)
        claimed = self._claimed.get(queue.priority, frozenset())
        loads = self._loaded.setdefault(queue.priority, {})
        among = [stream for stream in streams if stream.id in claimed] or streams
        least = min(loads.get(stream.id, 0) for stream in among)
        near = [stream for stream in among if loads.get(stream.id, 0) <= least + MARGIN]
        fewest = min(stream.queues for stream in near)
        chosen, why = super().choose(queue, [stream for stream in near if stream.queues == fewest], snapshot)
        loads[chosen.id] = loads.get(chosen.id, 0) + WHOLE  # others may be placed before the next look
        return chosen, f"priority {queue.priority} may use {len(claimed)} streams; {why}"

    def rebalance(self, snapshot: Snapshot, now: int) -> Iterable[Decision]:
        """Move queues off what others claim, and on to what their priority claims."""
        self._look(snapshot)
        claims, loads = self._claimed, self._loaded
        owner = {stream: priority for priority, streams in claims.items() for stream in streams}
        for view in sorted(self._active(snapshot), key=lambda view: (view.priority, view.id)):
            claimed = [snapshot.streams[stream] for stream in sorted(claims.get(view.priority, ()))]
            mine = loads.get(view.priority, {})
            able = [stream for stream in claimed if self.may_move(snapshot, view, stream, now)]
            target = emptiest(able, mine)
            if target is None or view.stream is None:
                continue
            move = self._leave(view, target, owner) or self._spread(view, target, mine)
            if move is not None and self.pays(snapshot, move):
                yield self.carry_out(snapshot, move)
                demand = self.activities.queues[view.id].demand
                mine[view.stream] = mine.get(view.stream, 0) - demand
                mine[target.id] = mine.get(target.id, 0) + demand

    def _look(self, snapshot: Snapshot) -> None:
        """See what every priority claims, and what its streams have to do; O(active queues)."""
        self._looked_ns = self._now
        self._claimed = self._claims(snapshot, self._now)
        self._loaded = {priority: self._loads(snapshot, priority) for priority in self._claimed}
        taken = frozenset().union(*self._claimed.values())
        self._unclaimed = len(taken) < len(snapshot.streams)

    def _claims_more(self, priority: int) -> bool:
        """Whether a priority has work for all that it claims, and there is more."""
        loads = self._loaded.get(priority, {})
        return self._unclaimed and all(loads.get(stream, 0) >= WHOLE for stream in self._claimed[priority])

    def _leave(self, view: QueueView, target: StreamView, owner: Mapping[StreamId, int]) -> Move | None:
        """Propose to leave a stream that a higher priority claims."""
        assert view.stream is not None
        priority = owner.get(view.stream)
        if priority is None or priority <= view.priority:
            return None
        gain_ns = self.activities.queues[view.id].demand * HORIZON_NS // WHOLE
        return Move(view, target, gain_ns, f"priority {priority} claims {view.stream}")

    def _spread(self, view: QueueView, target: StreamView, loads: Mapping[StreamId, int]) -> Move | None:
        """Propose to share the work of a stream on which more wants to run than can."""
        assert view.stream is not None
        demand = self.activities.queues[view.id].demand
        here, there = loads.get(view.stream, 0), loads.get(target.id, 0)
        gain = here - max(here - demand, there + demand)
        if here <= WHOLE or gain < MARGIN:
            return None
        why = f"{view.stream} has work for {here} permille of its time, {target.id} for {there}"
        return Move(view, target, gain * HORIZON_NS // WHOLE, why)

    def _claims(self, snapshot: Snapshot, now: int) -> dict[int, frozenset[StreamId]]:
        """Divide the streams among the priorities that have something to do, the highest first."""
        by_priority: dict[int, list[QueueView]] = {}
        for queue in self.activities.queues:
            view = snapshot.queues.get(queue)
            if view is not None and view.pinned_stream is None:
                by_priority.setdefault(view.priority, []).append(view)
        free = lanes(snapshot)
        claims: dict[int, frozenset[StreamId]] = {}
        for priority in sorted(by_priority, reverse=True):
            views = by_priority[priority]
            usable = [
                lane
                for lane in free
                if any(self.able(snapshot, view, lane.streams[0].device, now) for view in views)
            ]
            taken = self._take(snapshot, usable, views)
            claims[priority] = frozenset(stream.id for lane in taken for stream in lane.streams)
            free = [lane for lane in free if lane not in taken]
        return claims

    def _take(self, snapshot: Snapshot, usable: Sequence[Lane], views: Sequence[QueueView]) -> list[Lane]:
        """Take as many lanes as the queues of one priority can use."""
        loads = self._loads(snapshot)
        own: dict[StreamId, int] = {}
        need = 0
        for view in views:
            demand = self.activities.queues[view.id].demand
            need += demand
            stream_id = self.stands(snapshot, view)
            if stream_id is not None:
                own[stream_id] = own.get(stream_id, 0) + demand

        def worth(lane: Lane) -> tuple[int, int, int]:
            here = sum(own.get(stream.id, 0) for stream in lane.streams)
            others = sum(loads.get(stream.id, 0) for stream in lane.streams) - here
            return (-min(here, lane.capacity), others, lane.streams[0].rank)

        taken: list[Lane] = []
        for lane in sorted(usable, key=worth):
            if need <= (MARGIN if taken else 0):
                break
            taken.append(lane)
            need -= lane.capacity
        return taken

    def _active(self, snapshot: Snapshot) -> list[QueueView]:
        views = [snapshot.queues[queue] for queue in self.activities.queues if queue in snapshot.queues]
        return [view for view in views if self.stands(snapshot, view) is not None]

    def _loads(self, snapshot: Snapshot, least_priority: int | None = None) -> dict[StreamId, int]:
        """Add up what the queues of each stream want, from a priority on, in permille of its time."""
        loads: dict[StreamId, int] = {}
        for view in self._active(snapshot):
            stream = self.stands(snapshot, view)
            if stream is not None and (least_priority is None or view.priority >= least_priority):
                loads[stream] = loads.get(stream, 0) + self.activities.queues[view.id].demand
        return loads


def lanes(snapshot: Snapshot) -> list[Lane]:
    """Group the streams of devices that work: those with parts of their own alone, others by device."""
    found: list[Lane] = []
    for view in snapshot.devices.values():
        if view.lost is not None:
            continue
        streams = tuple(snapshot.streams[stream] for stream in view.streams)
        units = [unit for share in view.spec.shares for unit in share.units or ()]
        divided = len(view.spec.shares) == len(streams) and bool(units) and len(set(units)) == len(units)
        found += [Lane((stream,)) for stream in streams] if divided else [Lane(streams)]
    return found
