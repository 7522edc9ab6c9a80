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
    weight : int
        Of the application whose it is.
    """

    load: str
    arrival_ns: int
    program: Program
    priority: int = 0
    start_by_ns: int | None = None
    is_span: bool = False
    weight: int = 100


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
    leaving : bool
        Whether the next one is not to begin.
    running : Task, optional
    told : tuple, optional
        Priority, deadline and weight that the engine was told last.
    """

    waiting: list[tuple[int, int, int, Task]] = field(default_factory=list)
    wanted_since_ns: int | None = None
    may_run: bool = False
    leaving: bool = False
    running: Task | None = None
    told: tuple[int, int | None, int] | None = None
    count: int = 0

    def put(self, task: Task) -> None:
        """Let a task wait."""
        self.count += 1
        heapq.heappush(self.waiting, (-task.priority, task.arrival_ns, self.count, task))

    def take(self) -> Task:
        """Take the first one out, to run it."""
        self.running = heapq.heappop(self.waiting)[-1]
        return self.running

    def wish(self) -> tuple[int, int | None, int]:
        """Highest priority of what waits, when the first of it is to start, and whose weight."""
        tasks = [entry[-1] for entry in self.waiting]
        deadlines = [task.start_by_ns for task in tasks]
        known = [at for at in deadlines if at is not None]
        priority = max(task.priority for task in tasks)
        weights = {task.load: task.weight for task in tasks if task.priority == priority}
        return priority, None if len(known) < len(deadlines) else min(known), sum(weights.values())
