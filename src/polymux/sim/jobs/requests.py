"""The tasks of a device: requests wait for it in the order of their priority and arrival, and run one at a time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from polymux.sim.jobs.program import Program


@dataclass(frozen=True, slots=True)
class Task:
    """A request, or a span of a trace.

    Parameters
    ----------
    load : str
        Whose it is.
    arrival_ns : int
    program : Program
    priority : int
    start_by_ns : int, optional
        When it is to start at the latest.
    is_span : bool
        Whether what counts is when it begins, not when it ends.
    """

    load: str
    arrival_ns: int
    program: Program
    priority: int = 0
    start_by_ns: int | None = None
    is_span: bool = False


@dataclass(slots=True)
class TaskQueue:
    """What waits for a device and what runs there.

    Parameters
    ----------
    waiting : list
        A heap.
    wanted_since_ns : int, optional
        Since when the device is wanted and may not be used yet.
    may_run : bool
    running : Task, optional
    told : tuple, optional
        Priority and deadline that the engine was told last.
    """

    waiting: list[tuple[int, int, int, Task]] = field(default_factory=list)
    wanted_since_ns: int | None = None
    may_run: bool = False
    running: Task | None = None
    told: tuple[int, int | None] | None = None
    count: int = 0

    def put(self, task: Task) -> None:
        """Let a task wait."""
        self.count += 1
        heapq.heappush(self.waiting, (-task.priority, task.arrival_ns, self.count, task))

    def take(self) -> Task:
        """Take the first one out, to run it."""
        self.running = heapq.heappop(self.waiting)[-1]
        return self.running

    def wish(self) -> tuple[int, int | None]:
        """Highest priority of what waits, and when the first of it is to start."""
        tasks = [entry[-1] for entry in self.waiting]
        deadlines = [task.start_by_ns for task in tasks]
        known = [at for at in deadlines if at is not None]
        priority = max(task.priority for task in tasks)
        return priority, None if len(known) < len(deadlines) else min(known)
