"""A machine in virtual time: streams run tasks of bound queues one by one, as the accelerator threads do.

It carries out what the engine decides through the `Driver`, which checks each decision, and checks itself that tasks of
a queue run in order, once, and on one stream at a time. Streams choose as workers do: the highest priority first, then
the session with the least virtual time (start-time fair queuing), then the turn.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from polymux.core.decision import Bind, Decision, Prepare, Weigh
from polymux.core.event import (
    DeviceLoad,
    Event,
    LoadReported,
    QueueClosed,
    QueueLoad,
    QueuePrepared,
    QueueReleased,
    StreamLoad,
    Tick,
)
from polymux.core.ids import DeviceId, QueueId, StreamId
from tests.contract.driver import Driver, opened

MS = 1_000_000


@dataclass
class Work:
    """One queue: what waits in it, and what was done."""

    group: str
    priority: int
    task_ns: int
    pending: deque[int] = field(default_factory=deque)
    endless: bool = False
    submitted: int = 0
    done: list[int] = field(default_factory=list)
    busy_ns: int = 0
    running: StreamId | None = None
    weight: int = 100
    turn: int = 0
    data: dict[str, int] = field(default_factory=dict)
    since_report: tuple[int, int] = (0, 0)

    def take(self) -> int:
        if self.endless and not self.pending:
            self.submit()
        return self.pending.popleft()

    def submit(self) -> None:
        self.pending.append(self.submitted)
        self.submitted += 1

    @property
    def waits(self) -> bool:
        return self.endless or bool(self.pending)


class Machine:
    """Runs a policy with applications; `now` is `driver.now`."""

    def __init__(self, policy: str) -> None:
        self.driver = Driver(policy)
        self.queues: dict[QueueId, Work] = {}
        self.busy_ns: dict[StreamId, int] = {}
        self.prepare_fails: Callable[[], bool] = lambda: False
        self.prepare_ns = MS
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._turn = count(1)
        self._busy: dict[StreamId, Work] = {}
        self._virtual: dict[tuple[StreamId, str], int] = {}
        self._clock: dict[StreamId, int] = {}
        self._active: dict[StreamId, set[str]] = {}
        self._reported: dict[StreamId, int] = {}

    def send(self, event: Event) -> None:
        """Give the engine an event now, and let the streams go on."""
        for decision in self.driver.send(event, after_ns=0):
            self._carry_out(decision)
        for stream in list(self.driver.streams):
            self._go_on(stream)

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._agenda, (when_ns, next(self._order), what))

    def run(self, duration_ns: int) -> None:
        """Let time pass."""
        until = self.driver.now + duration_ns
        while self._agenda and self._agenda[0][0] <= until:
            when, _, what = heapq.heappop(self._agenda)
            self.driver.now = max(self.driver.now, when)
            what()
        self.driver.now = until

    def open(
        self,
        queue: str,
        *,
        task_ns: int = MS,
        tasks: int = 0,
        endless: bool = False,
        pinned: str | None = None,
        priority: int = 0,
        weight: int = 100,
        memory_nbytes: int = 0,
        data: dict[str, int] | None = None,
    ) -> Work:
        """Open a queue with some tasks, or with a new one whenever one was taken."""
        name = QueueId(queue)
        work = Work(queue.partition(".")[0], priority, task_ns, endless=endless, data=data or {})
        self.queues[name] = work
        self._report()
        self.send(opened(queue, pinned, priority, weight, memory_nbytes))
        for _ in range(tasks):
            work.submit()
        self._go_on_all()
        return work

    def submit(self, queue: str) -> None:
        """Submit a task."""
        self.queues[QueueId(queue)].submit()
        self._go_on_all()

    def close(self, queue: str) -> None:
        """Close a queue; tasks that wait are dropped, the one that runs ends."""
        self.queues[QueueId(queue)].pending.clear()
        self.queues[QueueId(queue)].endless = False
        self.send(QueueClosed(QueueId(queue)))
        self._release_idle()

    def settle(self) -> None:
        """Let queues that are idle be let go of where that was asked."""
        self._release_idle()

    def _go_on_all(self) -> None:
        for stream in list(self.driver.streams):
            self._go_on(stream)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Bind() | Weigh():
                self.queues[decision.queue].weight = decision.weight
            case Prepare():
                problem = "it lacks 4 bytes" if self.prepare_fails() else None
                queue, device = decision.queue, decision.device
                self.at(
                    self.driver.now + self.prepare_ns,
                    lambda: self._prepared(QueuePrepared(queue, device, problem)),
                )
        wake = getattr(decision, "at_ns", None)
        if wake is not None:
            self.at(wake, self._tick)

    def _prepared(self, event: QueuePrepared) -> None:
        self.send(event)
        self._release_idle()

    def _release_idle(self) -> None:
        for queue in list(self.driver.revoked):
            if queue in self.driver.revoked and self.queues[queue].running is None:
                self.send(QueueReleased(queue))

    def _tick(self) -> None:
        self._report()
        self.send(Tick())
        self._release_idle()

    def _report(self) -> None:
        streams = {}
        for stream in self.driver.streams:
            bound = [q for q, s in self.driver.bound.items() if s == stream]
            busy_ns = self.busy_ns.get(stream, 0)
            pending = sum(len(self.queues[q].pending) + self.queues[q].endless for q in bound)
            streams[stream] = StreamLoad(pending, busy_ns - self._reported.get(stream, 0), len(bound))
            self._reported[stream] = busy_ns
        queues = {}
        for queue, work in self.queues.items():
            tasks, busy_ns = work.since_report
            work.since_report = (len(work.done), work.busy_ns)
            if work.waits or len(work.done) > tasks:
                pending = len(work.pending) + work.endless
                queues[queue] = QueueLoad(pending, len(work.done) - tasks, work.busy_ns - busy_ns, work.data)
        devices = {DeviceId(device): DeviceLoad(0, 100, 100) for device in set(self.driver.streams.values())}
        self.send(LoadReported(streams, queues, devices))

    def _go_on(self, stream: StreamId) -> None:
        """Start the next task of an idle stream."""
        if stream in self._busy:
            return
        ready = [
            self.queues[queue]
            for queue, bound in self.driver.bound.items()
            if bound == stream
            and queue not in self.driver.revoked
            and self.queues[queue].waits
            and self.queues[queue].running is None
        ]
        if not ready:
            self._active[stream] = set()
            return
        self._join(stream, {work.group for work in ready})
        work = min(ready, key=lambda w: (-w.priority, self._virtual[stream, w.group], w.turn))
        task = work.take()
        work.turn, work.running = next(self._turn), stream
        self._clock[stream] = self._virtual[stream, work.group]
        self._busy[stream] = work
        self.at(self.driver.now + work.task_ns, lambda: self._end(stream, work, task))

    def _join(self, stream: StreamId, groups: set[str]) -> None:
        active = self._active.get(stream, set())
        for group in groups - active:
            own = self._virtual.get((stream, group), 0)
            self._virtual[stream, group] = max(own, self._clock.get(stream, 0))
        self._active[stream] = groups

    def _end(self, stream: StreamId, work: Work, task: int) -> None:
        assert task == len(work.done), f"task {task} ran as number {len(work.done)}"
        assert work.running == stream
        work.done.append(task)
        work.running = None
        work.busy_ns += work.task_ns
        self.busy_ns[stream] = self.busy_ns.get(stream, 0) + work.task_ns
        self._virtual[stream, work.group] += work.task_ns * 1000 // work.weight
        del self._busy[stream]
        self._release_idle()
        self._go_on(stream)
