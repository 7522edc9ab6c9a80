"""Finds for each migration what led to it and what followed: the last task, the copies, the first task.

Notes
-----
The tasks are heard of later than the migrations, in batches. A migration waits here until the first task on its new
stream is known, or until it is clear that there is none: the queue has moved on, or the trace ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from polymux.server.trace_file import Span
from polymux.server.transfer import Transfer

CLOCKS_NS = 5_000
"""How far a task's times, which come from the processor's counter, may be off the system's clock."""
MAX_QUEUES = 1024
"""Queues whose newest tasks and copies are remembered."""
MAX_COPIES = 256
"""Copies of one queue that are remembered."""


class Ran(NamedTuple):
    """A task: where and when it ran."""

    stream: str
    span: Span


class Copied(NamedTuple):
    """A copy and its place in the timeline."""

    transfer: Transfer
    span: Span


@dataclass(slots=True)
class Move:
    """A queue that went from one device to another, and what is known of it.

    Parameters
    ----------
    queue, name : str
        The queue's id, and its name for people.
    old, new : str
        Streams.
    left_ns : int
        When the old stream let go of it.
    bound_ns : int
        When the new one had it.
    """

    queue: str
    name: str
    old: str
    new: str
    left_ns: int
    bound_ns: int
    last: Span | None = None
    """The last task on the old stream."""
    first: Span | None = None
    """The first one on the new stream."""
    ended_ns: int = 0
    """When it was over: the first task began, or the queue moved on without one."""
    ahead: list[Copied] = field(default_factory=list)
    """Copies that were made while the queue still ran on the old device."""
    after: list[Copied] = field(default_factory=list)
    """Copies that were made after that, up to the end of the first task."""

    @property
    def start_ns(self) -> int:
        """When the migration began: not before the last task ended."""
        return max(self.left_ns, 0 if self.last is None else self.last.end_ns)

    @property
    def nbytes(self) -> int:
        """Bytes that were copied for it."""
        return sum(copied.transfer.nbytes for copied in (*self.ahead, *self.after))


class Moves:
    """The migrations that are not complete, and the newest tasks and copies; used by one thread."""

    def __init__(self) -> None:
        self._open: dict[str, deque[Move]] = {}
        self._last: OrderedDict[str, Ran] = OrderedDict()
        self._came_ns: OrderedDict[str, int] = OrderedDict()
        self._copies: OrderedDict[str, deque[Copied]] = OrderedDict()

    def begin(self, moves: Iterable[Move]) -> None:
        """Take migrations, those of a queue in the order of time."""
        for move in moves:
            self._open.setdefault(move.queue, deque()).append(move)

    def copied(self, copies: Iterable[Copied]) -> None:
        """Take copies."""
        for copied in copies:
            queue = copied.transfer.queue
            self._copies.setdefault(queue, deque(maxlen=MAX_COPIES)).append(copied)
            self._copies.move_to_end(queue)
        _shrink(self._copies)

    def ran(self, tasks: dict[str, list[Ran]]) -> Iterator[Move]:
        """Take tasks by queue, all that ended before the migrations that are known; yield what is complete."""
        for queue, ran in tasks.items():
            ran.sort(key=lambda task: task.span.start_ns)
            yield from self._complete(queue, ran)
            self._last[queue] = ran[-1]
            self._last.move_to_end(queue)
        for queue in [queue for queue, moves in self._open.items() if len(moves) > 1 and queue not in tasks]:
            yield from self._complete(queue, [])
        _shrink(self._last)
        _shrink(self._came_ns)

    def end(self) -> Iterator[Move]:
        """Yield the migrations that no task followed."""
        for moves in self._open.values():
            for move in moves:
                yield self._finished(move, [], move.bound_ns)
        self._open.clear()

    def _complete(self, queue: str, ran: Sequence[Ran]) -> Iterator[Move]:
        moves = self._open.get(queue)
        while moves:
            following = moves[1] if len(moves) > 1 else None
            until_ns = None if following is None else following.left_ns
            move = moves[0]
            move.first = _first_after(ran, move, until_ns)
            if move.first is not None:
                yield self._finished(moves.popleft(), ran, move.first.start_ns)
            elif following is not None:
                yield self._finished(moves.popleft(), ran, following.left_ns)
            else:
                return
        self._open.pop(queue, None)

    def _finished(self, move: Move, ran: Sequence[Ran], ended_ns: int) -> Move:
        move.last = self._last_before(move, ran)
        move.ended_ns = max(ended_ns, move.start_ns + 1)
        self._take_copies(move)
        self._came_ns[move.queue] = move.left_ns
        self._came_ns.move_to_end(move.queue)
        return move

    def _last_before(self, move: Move, ran: Sequence[Ran]) -> Span | None:
        """Find the task that ran just before the queue left; None when it left without having run on that stream."""
        at = bisect_left(ran, move.left_ns + CLOCKS_NS, key=lambda task: task.span.start_ns)
        known = self._last.get(move.queue)
        before = [*ran[max(0, at - 2) : at], *([known] if known is not None and at < 2 else [])]
        before = [task for task in before if move.first is None or task.span.end_ns <= move.first.start_ns]
        last = max(before, key=lambda task: task.span.end_ns, default=None)
        if last is None or last.stream != move.old or last.span.end_ns <= self._came_ns.get(move.queue, 0):
            return None  # it came there and left again
        return last.span

    def _take_copies(self, move: Move) -> None:
        copies = self._copies.get(move.queue)
        if copies is None:
            return
        end_ns = move.ended_ns if move.first is None else move.first.end_ns
        old, new = (stream.rpartition("/")[0] for stream in (move.old, move.new))
        kept: list[Copied] = []
        for copied in copies:
            transfer = copied.transfer
            if transfer.start_ns >= end_ns:
                kept.append(copied)
            elif transfer.start_ns < move.left_ns:
                if transfer.target_name == new:
                    move.ahead.append(copied)
            elif transfer.target_name == new or transfer.source_name == old:
                move.after.append(copied)
        copies.clear()
        copies.extend(kept)
        for found in (move.ahead, move.after):
            found.sort(key=lambda copied: copied.span.start_ns)


def _first_after(ran: Sequence[Ran], move: Move, until_ns: int | None) -> Span | None:
    earliest = move.left_ns - CLOCKS_NS
    begin = bisect_right(ran, earliest, key=lambda task: task.span.end_ns)
    for task in ran[begin:]:
        if until_ns is not None and task.span.start_ns >= until_ns + CLOCKS_NS:
            return None
        if task.stream == move.new and task.span.start_ns >= earliest:
            return task.span
    return None


def _shrink(remembered: OrderedDict[str, Any]) -> None:
    while len(remembered) > MAX_QUEUES:
        remembered.popitem(last=False)
