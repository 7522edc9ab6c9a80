"""The scheduler: gives events to the engine, one at a time, and carries its decisions out."""

from __future__ import annotations

import heapq
import queue
import threading
import traceback
from collections.abc import Callable, Collection, Sequence
from time import monotonic_ns

from polymux.core.decision import (
    Answer,
    Bind,
    Decision,
    FailAll,
    FailHead,
    Prepare,
    Reject,
    Revoke,
    WakeAt,
    Weigh,
)
from polymux.core.errors import BadDecision, InvalidRequest
from polymux.core.event import (
    Event,
    HeldHead,
    LoadReported,
    MigrateRequested,
    QueueClosed,
    QueueOpened,
    QueuePrepared,
    QueueReleased,
    Tick,
)
from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.core.snapshot import Snapshot
from polymux.sched.engine import Engine
from polymux.sched.recording import Step
from polymux.segment import SegmentError
from polymux.server.accelerator import Accelerator
from polymux.server.accounting import Accounts
from polymux.server.refusal import Refusal
from polymux.server.session import TaskQueue

Done = Callable[[Sequence[Decision]], None]
Answered = Callable[[bool, str], None]
Preparation = Callable[[TaskQueue, DeviceId, Callable[[str | None], None]], None]
"""Copies what a queue's pending tasks need to a device, then says None or what prevents it."""


class Scheduler:
    """Owns the engine, whose events are handled one at a time by the scheduler's thread.

    Notes
    -----
    An accelerator thread that has let go of a queue and wants to know where it goes (`ask`) handles that event itself
    when nobody decides at that moment: waking the scheduler's thread would take longer than deciding.

    Parameters
    ----------
    engine : Engine
    record : callable
        Told of every step.
    moved : callable
        Told when a queue is about to be bound to another device than before: queue, old and new stream.
    prepare : callable
        Copies what a queue's pending tasks need to a device, and says None then, or why it cannot; from any thread.
    report : callable
        Makes the load report of these streams and queues.
    accounts : Accounts
        Where refused tasks are counted.
    """

    def __init__(
        self,
        engine: Engine,
        record: Callable[[Step], None],
        moved: Callable[[TaskQueue, StreamId, StreamId], None],
        prepare: Preparation,
        report: Callable[[Collection[Accelerator], Collection[TaskQueue]], LoadReported],
        accounts: Accounts,
    ) -> None:
        self._engine = engine
        self._record = record
        self._moved = moved
        self._prepare = prepare
        self._report = report
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._accelerators: dict[StreamId, Accelerator] = {}
        self._refusal = Refusal(self._refusal_released, accounts)
        self._queues: dict[QueueId, TaskQueue] = {}
        self._where: dict[QueueId, Accelerator] = {}
        self._last: dict[QueueId, Accelerator] = {}
        self._after_refusal: dict[QueueId, Accelerator] = {}
        self._requests: dict[int, Answered] = {}
        self._next_request = 1
        self._wake_ups: list[int] = []
        self._deciding = threading.Lock()
        self._settled: threading.Event | None = None
        self._thread = threading.Thread(target=self._run, name="polymux-scheduler", daemon=True)

    # ---- from any thread ----

    def start(self) -> None:
        """Start the thread."""
        self._refusal.start()
        self._thread.start()

    def settle(self, timeout_s: float) -> bool:
        """Wait until no queue is open any more; False when a task still runs after that time."""
        settled = threading.Event()

        def watch() -> None:
            self._settled = settled
            self._notice_settled()

        self._inbox.put(watch)
        return settled.wait(timeout_s)

    def end(self) -> None:
        """End the thread after what has been posted so far."""
        self._inbox.put(None)
        self._thread.join()
        self._refusal.end()

    def post(self, event: Event) -> None:
        """Let the engine handle an event."""
        self._inbox.put(lambda: self._handle(event))

    def ask(self, question: HeldHead) -> None:
        """Let the engine handle a question, at once and in the calling thread if it can.

        The caller holds no lock that carrying a decision out may need.
        """
        if not self._deciding.acquire(blocking=False):
            self.post(question)
            return
        try:
            self._attempt(lambda: self._handle(question))
        finally:
            self._deciding.release()

    def add(self, accelerator: Accelerator) -> None:
        """Make a stream's thread known, before its device is added."""
        self._inbox.put(lambda: self._accelerators.__setitem__(accelerator.spec.id, accelerator))

    def open(self, task_queue: TaskQueue, done: Callable[[str | None], None]) -> None:
        """Open a queue; `done` gets None, or why it is refused."""
        self._inbox.put(lambda: self._open(task_queue, done))

    def close(self, task_queue: TaskQueue, closed: Callable[[], None]) -> None:
        """Close a queue; `closed` is called when no thread looks at its ring any more."""
        self._inbox.put(lambda: self._close(task_queue, closed))

    def ask_to_migrate(self, event: MigrateRequested, answered: Answered) -> None:
        """Ask for a migration; the event's request number is chosen here."""
        self._inbox.put(lambda: self._ask_to_migrate(event, answered))

    def call(self, function: Callable[[Snapshot], None]) -> None:
        """Call a function in the scheduler thread with a snapshot."""
        self._inbox.put(lambda: function(self._engine.snapshot()))

    # ---- in the thread ----

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Do what comes next; False at the end. Nothing of it is kept, since it may keep a session alive."""
        try:
            work: Callable[[], object] | None = self._inbox.get(timeout=self._seconds_to_wake_up())
        except queue.Empty:
            work = self._tick
        if work is None:
            return False
        with self._deciding:
            self._attempt(work)
        return True

    def _attempt(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:  # a defect must not end the thread that everybody waits for
            traceback.print_exc()

    def _tick(self) -> None:
        if self._wake_ups and self._wake_ups[0] <= monotonic_ns():
            heapq.heappop(self._wake_ups)
            self._report_load()
            self._handle(Tick())

    def _wake_at(self, at_ns: int) -> None:
        heapq.heappush(self._wake_ups, at_ns)
        if threading.current_thread() is not self._thread:
            self._inbox.put(_nothing)  # its thread sleeps without knowing

    def _report_load(self) -> None:
        self._handle(self._report(self._accelerators.values(), self._queues.values()))

    def _seconds_to_wake_up(self) -> float | None:
        return max(0.0, (self._wake_ups[0] - monotonic_ns()) / 1e9) if self._wake_ups else None

    def _handle(self, event: Event) -> list[Decision]:
        released = event.queue if isinstance(event, QueueReleased | HeldHead) else None
        if released is not None:
            self._where.pop(released, None)
        now = monotonic_ns()
        try:
            decisions = self._engine.handle(event, now)
        except (
            BadDecision
        ) as error:  # a defect of the policy; the engine says what has to be done all the same
            traceback.print_exc()
            decisions = list(error.decisions)
        self._record(Step(now, event, tuple(decisions)))
        for decision in decisions:
            self._carry_out(decision)
        if released is not None:
            self._finish_if_closed(released)
        return decisions

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Bind():
                self._bind(decision)
            case Revoke():
                self._revoke(decision.queue)
            case Prepare():
                self._start_preparing(decision)
            case Weigh():
                self._weigh(decision)
            case FailHead():
                if decision.queue in self._queues:
                    self._queues[decision.queue].failure = (decision.status, decision.message)
            case FailAll():
                if decision.queue in self._queues:
                    self._refusal.take(self._queues[decision.queue], decision.status, decision.message)
            case WakeAt():
                self._wake_at(decision.at_ns)
            case Answer():
                answered = self._requests.pop(decision.request, None)
                if answered is not None:
                    answered(decision.ok, decision.message)

    def _bind(self, decision: Bind) -> None:
        task_queue = self._queues.get(decision.queue)
        if task_queue is None:
            return
        accelerator = self._accelerators[decision.stream]
        view = self._engine.queue(decision.queue)
        task_queue.home = None if view is None else view.home
        task_queue.weight = decision.weight
        if self._refusal.holds(task_queue):
            self._after_refusal[task_queue.id] = accelerator
            self._refusal.let_go(task_queue)
        else:
            self._bind_now(task_queue, accelerator)

    def _bind_now(self, task_queue: TaskQueue, accelerator: Accelerator) -> None:
        last = self._last.get(task_queue.id)
        if (
            last is not None and last.device.id != accelerator.device.id
        ):  # told before its first task can run there
            task_queue.migrations += 1
            self._moved(task_queue, last.spec.id, accelerator.spec.id)
        self._last[task_queue.id] = accelerator
        try:
            accelerator.bind(task_queue)
        except SegmentError:  # its ring is gone: nobody waits for it
            self.post(QueueReleased(task_queue.id))
            return
        self._where[task_queue.id] = accelerator

    def _revoke(self, queue_id: QueueId) -> None:
        if self._after_refusal.pop(queue_id, None) is not None:
            self.post(QueueReleased(queue_id))
        elif queue_id in self._where:
            self._where[queue_id].worker.unbind(queue_id)

    def _weigh(self, decision: Weigh) -> None:
        task_queue = self._queues.get(decision.queue)
        if task_queue is not None:
            task_queue.weight = decision.weight
            if task_queue.id in self._where:
                self._where[task_queue.id].weigh(task_queue)

    def _start_preparing(self, decision: Prepare) -> None:
        queue_id, device = decision.queue, decision.device

        def done(problem: str | None) -> None:
            self.post(QueuePrepared(queue_id, device, problem))

        task_queue = self._queues.get(queue_id)
        if task_queue is None:
            done("the queue is closed")
        else:
            self._prepare(task_queue, device, done)

    def _refusal_released(self, task_queue: TaskQueue) -> None:
        def go_on() -> None:
            accelerator = self._after_refusal.pop(task_queue.id, None)
            if accelerator is not None and not task_queue.closing:
                self._bind_now(task_queue, accelerator)
            else:
                self._finish_if_closed(task_queue.id)

        self._inbox.put(go_on)

    def _open(self, task_queue: TaskQueue, done: Callable[[str | None], None]) -> None:
        self._queues[task_queue.id] = task_queue
        session = task_queue.session
        event = QueueOpened(
            task_queue.id,
            session.id,
            session.name,
            task_queue.priority,
            task_queue.pinned,
            session.weight,
            task_queue.memory_nbytes,
            task_queue.pinned_stream,
        )
        try:
            self._report_load()
            decisions = self._handle(event)
            refused = next((decision.message for decision in decisions if isinstance(decision, Reject)), None)
        except InvalidRequest as error:
            refused = str(error)
        if refused is not None:
            self._forget(task_queue)
        done(refused)

    def _close(self, task_queue: TaskQueue, closed: Callable[[], None]) -> None:
        if task_queue.id not in self._queues:
            closed()
            return
        task_queue.closed.append(closed)
        if task_queue.closing:
            return
        task_queue.closing = True
        self._handle(QueueClosed(task_queue.id))
        if self._refusal.holds(task_queue):
            self._refusal.let_go(task_queue)
        else:
            self._finish_if_closed(task_queue.id)

    def _finish_if_closed(self, queue_id: QueueId) -> None:
        task_queue = self._queues.get(queue_id)
        if task_queue is None or not task_queue.closing or queue_id in self._where:
            return
        self._forget(task_queue)
        callbacks, task_queue.closed = task_queue.closed, []
        for closed in callbacks:
            closed()

    def _forget(self, task_queue: TaskQueue) -> None:
        del self._queues[task_queue.id]
        self._last.pop(task_queue.id, None)
        self._after_refusal.pop(task_queue.id, None)
        task_queue.kept.clear()
        task_queue.session.segment.close_queue(task_queue.index)
        task_queue.session.queues.pop(task_queue.index, None)
        self._notice_settled()

    def _notice_settled(self) -> None:
        if self._settled is not None and not self._queues:
            self._settled.set()

    def _ask_to_migrate(self, event: MigrateRequested, answered: Answered) -> None:
        request = self._next_request
        self._next_request += 1
        self._requests[request] = answered
        self._handle(MigrateRequested(event.queue, event.device, request))


def _nothing() -> None:
    """Have the scheduler's thread look at its wake-ups anew."""
