"""Weighted fair: applications get device time by their weights, over all devices together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from polymux.core.decision import Decision, Weigh
from polymux.core.errors import InvalidRequest
from polymux.core.event import MAX_WEIGHT, NORMAL_WEIGHT, Event, QueueOpened
from polymux.core.ids import QueueId, SessionId, StreamId
from polymux.core.snapshot import QueueView, Snapshot, StreamView
from polymux.policy.activity import WHOLE
from polymux.policy.rebalancing import HORIZON_NS, MARGIN, Move, Rebalancing, emptiest
from polymux.policy.shares import Claim, fair_shares

MOVES_PER_TICK = 2
SETTLED = 8
"""A weight is changed when it is off by more than one part in so many."""

LAG_NS = 100_000_000
"""Device time that an application must be behind before others make room for it."""

CORRECTION = range(50, 20_001)
"""Bounds of the factor by which an application's weights are corrected, in permille."""

MEMORY = 32
"""Ticks over which what was due is compared with what was got: tasks may take longer than a tick."""

GAIN = 63
"""The larger, the slower weights are corrected; slow enough not to swing, since the comparison looks back."""


@dataclass(slots=True)
class Book:
    """What an application that wanted more was due, and what it got, in ns of device time."""

    due_ns: int = 0
    got_ns: int = 0
    lag_ns: int = 0
    """The difference, summed up."""

    def enter(self, due_ns: int, got_ns: int) -> None:
        """Add an interval."""
        self.due_ns += due_ns - self.due_ns // MEMORY
        self.got_ns += got_ns - self.got_ns // MEMORY
        self.lag_ns = max(-HORIZON_NS, min(HORIZON_NS, self.lag_ns + due_ns - got_ns))

    @property
    def ratio(self) -> int:
        """Due over got, in permille, at most doubled or halved."""
        return (
            max(WHOLE // 2, min(2 * WHOLE, self.due_ns * WHOLE // max(1, self.got_ns)))
            if self.due_ns
            else WHOLE
        )


class WeightedFair(Rebalancing):
    """Divide device time among applications by weight: ``weighted_fair=train:1,serve:3`` overrides theirs by name.

    Parameters
    ----------
    weights : mapping
        Weight by application name; 1 stands for a client's ``weight=1.0``.

    Notes
    -----
    At each tick every application that has something to do gets a share of all streams' time: by weight, but no more
    than its queues can use, since a queue uses one stream at a time. The share is divided among its queues, each of
    which is then *entitled* to a part of a stream. From there two things follow.

    - Queues move from the stream where most is promised to the one where least is, when that brings them closer. Where
      nothing can (three equal queues, two streams), whoever shares a stream with an application that is `LAG_NS` behind
      makes room for it, so that they take turns.
    - On each stream, a session's weight is what its queues there are entitled to, times a correction that follows how
      much device time its application got compared with its share.

    Applications are told apart by name: two clients of one name share. All streams count alike, whatever their speed.
    """

    name = "weighted_fair"

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self._weights = dict(weights or {})
        self._entitled: dict[QueueId, int] = {}
        self._correction: dict[str, int] = {}
        self._books: dict[str, Book] = {}

    @classmethod
    def make(cls, option: str = "") -> Self:
        """Build the policy from ``weighted_fair`` or ``weighted_fair=NAME:WEIGHT,...``."""
        weights = {}
        for part in option.split(",") if option else []:
            name, _, text = part.rpartition(":")
            weights[name] = _weight(name, text, part)
        return cls(weights)

    def decide(self, snapshot: Snapshot, event: Event, now: int) -> list[Decision]:
        """Answer one event; see `Policy.decide`."""
        if isinstance(event, QueueOpened):
            self._entitled.pop(event.queue, None)
            if event.queue in snapshot.queues:
                self.activities.expect(event.queue, now)
        return super().decide(snapshot, event, now)

    def choose(
        self, queue: QueueView, streams: Sequence[StreamView], snapshot: Snapshot
    ) -> tuple[StreamView, str]:
        """Pick the stream where least is promised; then by the cost of memory, and fewer queues."""
        promised = self._promised(snapshot)
        least = min(promised.get(stream.id, 0) for stream in streams)
        near = [stream for stream in streams if promised.get(stream.id, 0) <= least + MARGIN]
        fewest = min(stream.queues for stream in near)
        chosen, why = super().choose(queue, [stream for stream in near if stream.queues == fewest], snapshot)
        return chosen, f"{promised.get(chosen.id, 0)} permille of {chosen.id} are promised; {why}"

    def weight(self, queue: QueueView, stream: StreamView) -> int:  # noqa: ARG002
        """Give what the queue is entitled to; until a tick says so, by its weight alone."""
        entitled = self._entitled.get(queue.id)
        if entitled is None:
            entitled = WHOLE * self._weight_of(queue) // (NORMAL_WEIGHT + self._weight_of(queue))
        return max(1, min(MAX_WEIGHT, entitled * self._correction.get(queue.application, WHOLE) // WHOLE))

    def rebalance(self, snapshot: Snapshot, now: int) -> Iterable[Decision]:
        """Divide the time anew, correct the weights, and move what is on the wrong stream."""
        active = {
            queue: view
            for queue in self.activities.queues
            if self.stands(snapshot, view := snapshot.queues[queue]) is not None
        }
        shares = self._divide(snapshot, active)
        self._correct(active, shares)
        yield from self._moves(snapshot, active, now)
        yield from self._weigh(active)

    def _divide(self, snapshot: Snapshot, active: Mapping[QueueId, QueueView]) -> dict[str, int]:
        demand: dict[str, int] = {}
        weight: dict[str, int] = {}
        for queue, view in active.items():
            name = view.application
            demand[name] = demand.get(name, 0) + max(1, self.activities.queues[queue].demand)
            weight[name] = max(weight.get(name, 1), self._weight_of(view))
        claims = {name: Claim(weight[name], demand[name]) for name in demand}
        shares = fair_shares(WHOLE * len(snapshot.streams), claims)
        self._entitled = {
            queue: max(
                1, self.activities.queues[queue].demand * shares[view.application] // demand[view.application]
            )
            for queue, view in active.items()
        }
        return shares

    def _correct(self, active: Mapping[QueueId, QueueView], shares: Mapping[str, int]) -> None:
        """Follow what each application got, compared with its share of what those got that wanted more."""
        got_ns: dict[str, int] = {}
        wanting: dict[str, None] = {}
        for queue, view in active.items():
            activity = self.activities.queues[queue]
            got_ns[view.application] = got_ns.get(view.application, 0) + activity.busy_ns
            if activity.pending:
                wanting[view.application] = None
        total_ns = sum(got_ns[name] for name in wanting)
        total = max(1, sum(shares[name] for name in wanting))
        self._correction = {name: self._correction.get(name, WHOLE) for name in shares}
        self._books = {name: self._books.get(name, Book()) for name in wanting}
        for name, book in self._books.items():
            book.enter(total_ns * shares[name] // total, got_ns[name])
            factor = self._correction[name] * (GAIN * WHOLE + book.ratio) // ((GAIN + 1) * WHOLE)
            self._correction[name] = max(CORRECTION.start, min(CORRECTION.stop - 1, factor))
        mean = sum(self._correction[name] * shares[name] for name in wanting) // total
        for name in wanting:  # together they stay as they are: only what they are to each other matters
            self._correction[name] = self._correction[name] * WHOLE // max(1, mean)

    def _weigh(self, active: Mapping[QueueId, QueueView]) -> Iterable[Decision]:
        together: dict[tuple[StreamId | None, SessionId], int] = {}
        drained = {queue: view for queue, view in active.items() if view.drained}
        for queue, view in drained.items():
            key = (view.stream, view.session)
            together[key] = together.get(key, 0) + self._entitled[queue]
        for queue, view in drained.items():
            entitled = together[view.stream, view.session]
            correction = self._correction.get(view.application, WHOLE)
            weight = max(1, min(MAX_WEIGHT, entitled * correction // WHOLE))
            if abs(weight - view.bound_weight) * SETTLED > view.bound_weight:
                reason = f"it is entitled to {entitled} permille of {view.stream}, corrected by {correction}"
                yield Weigh(queue, weight, reason)

    def _moves(self, snapshot: Snapshot, active: Mapping[QueueId, QueueView], now: int) -> Iterable[Decision]:
        promised = self._promised(snapshot)
        for _ in range(MOVES_PER_TICK):
            move = self._best_move(snapshot, active, promised, now) or self._change_places(
                snapshot, active, promised, now
            )
            if move is None:
                return
            yield self.carry_out(snapshot, move)
            assert move.queue.stream is not None
            entitled = self._entitled[move.queue.id]
            promised[move.queue.stream] -= entitled
            promised[move.stream.id] = promised.get(move.stream.id, 0) + entitled
            active = {queue: view for queue, view in active.items() if queue != move.queue.id}

    def _best_move(
        self,
        snapshot: Snapshot,
        active: Mapping[QueueId, QueueView],
        promised: Mapping[StreamId, int],
        now: int,
    ) -> Move | None:
        """Find the move from the fullest stream that helps most."""
        target = emptiest(snapshot.streams.values(), promised)
        fullest = max(promised, key=lambda stream: (promised[stream], stream), default=None)
        if target is None or fullest is None or promised[fullest] <= WHOLE:
            return None
        best: Move | None = None
        for queue, view in active.items():
            if view.stream != fullest or not self.may_move(snapshot, view, target, now):
                continue
            entitled = self._entitled[queue]
            after = max(promised[fullest] - entitled, promised.get(target.id, 0) + entitled)
            gain = promised[fullest] - after
            move = Move(
                view,
                target,
                gain * HORIZON_NS // WHOLE,
                f"{promised[fullest]} permille of {fullest} are promised, {promised.get(target.id, 0)} of {target.id}",
            )
            better = best is None or move.gain_ns > best.gain_ns
            if gain >= MARGIN and better and self.pays(snapshot, move):
                best = move
        return best

    def _change_places(
        self,
        snapshot: Snapshot,
        active: Mapping[QueueId, QueueView],
        promised: Mapping[StreamId, int],
        now: int,
    ) -> Move | None:
        """Find who shares a stream with an application that is far behind, and a less promised one of others."""
        ahead = {
            view.stream
            for view in active.values()
            if self._lag_ns(view) < 0 and view.stream is not None and view.drained
        }
        behind = sorted(
            (view for view in active.values() if view.drained and self._lag_ns(view) >= LAG_NS),
            key=lambda view: (-self._lag_ns(view), view.id),
        )
        for view in behind:
            assert view.stream is not None
            others = [
                stream
                for stream in snapshot.streams.values()
                if stream.id in ahead and promised.get(stream.id, 0) + MARGIN <= promised.get(view.stream, 0)
            ]
            target = emptiest(others, promised)
            mates = [
                mate
                for mate in active.values()
                if mate.stream == view.stream and mate.application != view.application
            ]
            if target is None:
                continue
            movable = [mate for mate in mates if self.may_move(snapshot, mate, target, now)]
            mate = min(movable, key=lambda mate: (self._lag_ns(mate), mate.id), default=None)
            if mate is None:
                continue
            lag_ns = self._lag_ns(view)
            move = Move(
                mate, target, lag_ns, f"it makes room for {view.application}, which is {lag_ns} ns behind"
            )
            if self.pays(snapshot, move):
                return move
        return None

    def _promised(self, snapshot: Snapshot) -> dict[StreamId, int]:
        promised: dict[StreamId, int] = {}
        for queue, entitled in self._entitled.items():
            view = snapshot.queues.get(queue)
            stream = None if view is None else self.stands(snapshot, view)
            if stream is not None:
                promised[stream] = promised.get(stream, 0) + entitled
        return promised

    def _lag_ns(self, queue: QueueView) -> int:
        book = self._books.get(queue.application)
        return 0 if book is None else book.lag_ns

    def _weight_of(self, queue: QueueView) -> int:
        return self._weights.get(queue.application, queue.weight)


def _weight(name: str, text: str, part: str) -> int:
    try:
        weight = round(float(text) * NORMAL_WEIGHT)
    except (ValueError, OverflowError):
        weight = 0
    if not name or not 1 <= weight <= MAX_WEIGHT:
        raise InvalidRequest(
            f"policy 'weighted_fair' is given {part!r}; write NAME:WEIGHT with a weight from 0.01 to"
            f" {MAX_WEIGHT // NORMAL_WEIGHT}, several with commas: weighted_fair=train:1,serve:3"
        )
    return weight
