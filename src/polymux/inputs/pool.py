"""A bounded number of threads that run input stages: the most urgent first, and what is shared once."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from polymux.core.errors import Closed, PolymuxError, QueueFull, task_failed
from polymux.core.status import TaskStatus
from polymux.inputs.shared_results import SharedResults
from polymux.inputs.shared_store import SharedStore
from polymux.inputs.stage import InputStage, Results, key_of

__all__ = ["StageCounts", "StagePool"]

MIB = 1 << 20
SHARED_NBYTES = 64 * MIB
MAX_WAITING = 1024
_PATIENCE_NS = 1_000_000_000
"""An item without a deadline is as urgent as one that is due after this time."""
_LOOK_AGAIN_NS = 1_000_000
"""How long an item is put aside that another process has begun with."""
_LEAST_PATIENCE_NS = 200_000_000
"""So long another process may take for an item, or four times what this one takes on the average."""

Order = tuple[int, int, int]


@dataclass(slots=True)
class StageCounts:
    """What happened to the items of one stage.

    Attributes
    ----------
    runs : int
        How often it ran.
    shared : int
        Items that got the result of another one's run.
    failed : int
        Runs that ended with an error.
    run_ns : int
        Time of all runs.
    """

    runs: int = 0
    shared: int = 0
    failed: int = 0
    run_ns: int = 0


@dataclass(eq=False, slots=True)
class _Item:
    """One run, and everybody who waits for it."""

    stage: InputStage
    inputs: Sequence[NDArray[Any]]
    key: bytes | None
    order: Order
    expires_ns: int | None
    patient_until_ns: int = 0
    waiting: bool = True
    futures: list[Future[Results]] = field(default_factory=list)


class StagePool:
    """Runs input stages beside whatever the accelerators do.

    Parameters
    ----------
    threads : int, optional
        How many run at a time; by default half of the cores that this process may use, at least one.
    max_waiting : int
        Items that may wait to begin.
    shared_nbytes : int
        Bytes of results that are kept for others who want the same.
    store : SharedStore, optional
        Through which results are shared with other processes; becomes this object's. None: with this process only.
    clock : callable
        Monotonic time in ns.

    Notes
    -----
    From any thread. The threads start with the first item; `close` ends them. Of two items the one of higher priority
    begins first, then the one that is due earlier. An item that somebody more urgent wants as well moves up.
    """

    def __init__(
        self,
        threads: int | None = None,
        *,
        max_waiting: int = MAX_WAITING,
        shared_nbytes: int = SHARED_NBYTES,
        store: SharedStore | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.threads = threads or default_threads()
        self._max_waiting = max_waiting
        self._clock = clock
        self._changed = threading.Condition()
        self._store = store
        self._heap: list[tuple[Order, _Item]] = []
        self._deferred: deque[tuple[int, Order, _Item]] = deque()
        self._waiting = 0
        self._under_way: dict[bytes, _Item] = {}
        self._results = SharedResults(shared_nbytes)
        self._numbers = itertools.count()
        self._counts: dict[str, StageCounts] = {}
        self._running: list[threading.Thread] = []
        self._closed = False

    @property
    def waiting(self) -> int:
        """Items that have not begun."""
        return self._waiting

    @property
    def full(self) -> bool:
        """Whether no further item may come now."""
        return self._waiting >= self._max_waiting

    def counts(self) -> dict[str, StageCounts]:
        """What happened so far, by the name of the stage."""
        with self._changed:
            return {
                name: StageCounts(c.runs, c.shared, c.failed, c.run_ns) for name, c in self._counts.items()
            }

    def submit(
        self,
        stage: InputStage,
        inputs: Sequence[NDArray[Any]],
        *,
        share: bool = False,
        priority: int = 0,
        due_ns: int | None = None,
        expires_ns: int | None = None,
    ) -> Future[Results]:
        """Have a stage run for one item.

        Parameters
        ----------
        stage : InputStage
        inputs : sequence of ndarray
            Nobody may change them until the result is there.
        share : bool
            Whether the result of another item that was shared will do, if stage and bytes are the same.
        priority : int
            Larger begins first.
        due_ns : int, optional
            Monotonic time at which it is wanted; earlier begins first.
        expires_ns : int, optional
            Monotonic time after which it has no use: it is not begun then.

        Returns
        -------
        Future of tuple of ndarray
            The tensors, which cannot be written to. Raises what `InputStage.run` raises, `Rejected` when its time was
            over before it began, `Closed` when the pool was closed. A future that is cancelled does not run.

        Raises
        ------
        QueueFull
            When too many wait already.
        Closed
            After `close`.
        """
        key = key_of(stage, inputs) if share else None
        future: Future[Results] = Future()
        with self._changed:
            if self._closed:
                raise Closed("the pool of input stages is closed")
            due = self._clock() + _PATIENCE_NS if due_ns is None else due_ns
            order = (-priority, due, next(self._numbers))
            if key is not None and self._shared(stage, key, future, order, expires_ns):
                return future
            if self.full:
                raise QueueFull(
                    f"{self._waiting} items wait for input stages, and no more may; try again later"
                )
            item = _Item(stage, inputs, key, order, expires_ns, futures=[future])
            if key is not None:
                self._under_way[key] = item
            self._waiting += 1
            heapq.heappush(self._heap, (order, item))
            self._start_thread()
            self._changed.notify()
        return future

    def close(self) -> None:
        """Give up what has not begun, wait for what runs, and end the threads; calling it again is fine."""
        with self._changed:
            self._closed = True
            entries = [*self._heap, *((order, item) for _, order, item in self._deferred)]
            given_up = [item for order, item in entries if item.waiting and order == item.order]
            self._heap.clear()
            self._deferred.clear()
            self._waiting = 0
            self._changed.notify_all()
        for item in given_up:
            _settle(item.futures, Closed("the pool of input stages was closed"))
        for thread in self._running:
            thread.join()
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _shared(
        self, stage: InputStage, key: bytes, future: Future[Results], order: Order, expires_ns: int | None
    ) -> bool:
        """Have the future get the result of another item, if there is one."""
        results = self._results.get(key)
        item = self._under_way.get(key)
        if results is None and item is None:
            return False
        self._counts_of(stage).shared += 1
        if results is not None:
            future.set_result(results)
        elif item is not None:
            item.futures.append(future)
            if item.expires_ns is not None:
                item.expires_ns = None if expires_ns is None else max(item.expires_ns, expires_ns)
            if item.waiting and order < item.order:
                item.order = order
                heapq.heappush(self._heap, (order, item))  # the entry of its old order is passed over
        return True

    def _start_thread(self) -> None:
        if len(self._running) < self.threads:
            name = f"polymux-stage-{len(self._running)}"
            self._running.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._running[-1].start()

    def _work(self) -> None:
        while (item := self._next()) is not None:
            self._run(item)

    def _next(self) -> _Item | None:
        """Wait for an item; None when the pool is closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                while self._deferred and self._deferred[0][0] <= now:
                    _, order, item = self._deferred.popleft()
                    heapq.heappush(self._heap, (order, item))
                while self._heap:
                    order, item = heapq.heappop(self._heap)
                    if item.waiting and order == item.order:
                        item.waiting = False
                        self._waiting -= 1
                        return item
                self._changed.wait((self._deferred[0][0] - now) * 1e-9 if self._deferred else None)
        return None

    def _run(self, item: _Item) -> None:
        start_ns = self._clock()
        with self._changed:
            late = item.expires_ns is not None and start_ns > item.expires_ns
            dropped = late or all(future.cancelled() for future in item.futures)
            if dropped:
                self._forget(item)
        outcome = _late(item.stage) if dropped else self._outcome(item, start_ns)
        with self._changed:
            if outcome is None and self._closed:
                outcome = Closed("the pool of input stages was closed")
            if outcome is None:  # another process is at it: something else meanwhile
                item.waiting = True
                self._waiting += 1
                self._deferred.append((self._clock() + _LOOK_AGAIN_NS, item.order, item))
                return
            self._forget(item)
            if item.key is not None and not isinstance(outcome, PolymuxError):
                self._results.put(item.key, outcome)
        _settle(item.futures, outcome)  # nobody joins it any more

    def _outcome(self, item: _Item, start_ns: int) -> Results | PolymuxError | None:
        """Run the stage, or take the result of another process; None while that one runs it."""
        store, key = self._store, item.key
        if store is None or key is None:
            return self._counted(item, start_ns)
        found = store.get(key, len(item.stage.outputs))
        if found is None and not store.claim(key):
            item.patient_until_ns = item.patient_until_ns or start_ns + self._patience_ns(item.stage)
            if start_ns < item.patient_until_ns:
                return None  # when it takes much longer than usual, it may have been stopped
        try:
            found = found or store.get(key, len(item.stage.outputs))
            if found is not None:
                with self._changed:
                    self._counts_of(item.stage).shared += 1
                return found
            outcome = self._counted(item, start_ns)
            return outcome if isinstance(outcome, PolymuxError) else store.put(key, outcome)
        finally:
            store.release(key)

    def _counted(self, item: _Item, start_ns: int) -> Results | PolymuxError:
        outcome: Results | PolymuxError
        try:
            outcome = item.stage.run(item.inputs)
        except PolymuxError as error:
            outcome = error
        with self._changed:
            counts = self._counts_of(item.stage)
            counts.runs += 1
            counts.run_ns += max(0, self._clock() - start_ns)
            counts.failed += isinstance(outcome, PolymuxError)
        return outcome

    def _patience_ns(self, stage: InputStage) -> int:
        with self._changed:
            counts = self._counts_of(stage)
            return max(_LEAST_PATIENCE_NS, 4 * counts.run_ns // max(1, counts.runs))

    def _counts_of(self, stage: InputStage) -> StageCounts:
        return self._counts.setdefault(stage.name, StageCounts())

    def _forget(self, item: _Item) -> None:
        if item.key is not None:
            self._under_way.pop(item.key, None)


def default_threads() -> int:
    """Half of the cores that this process may use, at least one: a cpu device wants the others."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def _settle(futures: Sequence[Future[Results]], outcome: Results | PolymuxError) -> None:
    for future in futures:
        if not future.set_running_or_notify_cancel():
            continue
        if isinstance(outcome, PolymuxError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _late(stage: InputStage) -> PolymuxError:
    message = "its time was over before the input stage began"
    return task_failed(TaskStatus.REJECTED, "", 0, stage.name, message)
