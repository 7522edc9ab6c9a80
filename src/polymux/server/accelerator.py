"""The accelerator thread of one stream: takes tasks from the queues bound to it and sees each to its end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from polymux.core.device_spec import DeviceSpec, StreamSpec
from polymux.core.event import (
    DeviceWished,
    HeldHead,
    HomePossible,
    KernelMissing,
    QueueReleased,
)
from polymux.core.ids import KernelName
from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError, Stream
from polymux.segment import TaskRecord, Worker
from polymux.server.arguments import Ref, check_buffers, check_scalars
from polymux.server.execution import Execution, is_reserved, run_reserved
from polymux.server.health import LOST_AFTER
from polymux.server.isolation import Isolation
from polymux.server.machine import Callbacks, Machine
from polymux.server.measurement import Measurements
from polymux.server.placement import HOST
from polymux.server.rescue import rescue
from polymux.server.result_shapes import report_shapes
from polymux.server.session import TaskQueue
from polymux.server.started import BoundQueue, Ready, Started, TakenBackError, may_run_again, print_unexpected

ANY_NUMBER = 2**32 - 1


class Accelerator:
    """One stream, its thread and the queues bound to it.

    Notes
    -----
    `bind`, `weigh` and `worker.unbind` are the scheduler thread's; everything else runs in this thread. A queue whose
    head task may have to run elsewhere is let go of at once: the question is the release, the answer the next bind.
    """

    def __init__(
        self,
        spec: StreamSpec,
        device: DeviceSpec,
        stream: Stream,
        worker: Worker,
        execution: Execution,
        isolation: Isolation,
        measurements: Measurements,
        machine: Machine,
        callbacks: Callbacks,
    ) -> None:
        self.spec = spec
        self.device = device
        self.worker = worker
        self.stream = stream
        self._execution = execution
        self.isolation = isolation
        self._measurements = measurements
        self._machine = machine
        self._callbacks = callbacks
        self._location = machine.locations[device.id]
        self._bound: dict[str, BoundQueue] = {}
        self._boundaries: deque[Callable[[], None]] = deque()
        self._under_way: deque[Started] = deque()
        self._taken: TaskRecord | None = None
        self._health = machine.health[device.id]
        self._health.when_lost(self._hold_all)
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=f"polymux-{spec.id}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to end at the next task boundary."""
        self._ending = True
        self.worker.wake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for its end; False when it still runs a task."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def bind(self, queue: TaskQueue) -> None:
        """Let the thread take tasks from a queue; `SegmentError` when its ring is closed."""
        bound = queue.kept.get(self.spec.id)
        if bound is None:
            bound = queue.kept[self.spec.id] = BoundQueue(queue, queue.session.kernels.version)
        self._bound[queue.id] = bound
        native = queue.home is None  # away from home each task is looked at: it may be able to run there
        session = queue.session
        self.worker.bind(
            session.segment, queue.index, queue.id, queue.priority, native, session.id, queue.weight
        )
        if self._health.lost is not None:
            self.worker.hold(queue.id)

    def _hold_all(self) -> None:
        for queue in list(self._bound):
            self.worker.hold(queue)

    def weigh(self, queue: TaskQueue) -> None:
        """Take note of the new weight of a queue that is bound here."""
        self.worker.weigh(queue.id, queue.weight)

    def at_boundary(self, reached: Callable[[], None]) -> None:
        """Have a function called in this thread when no task runs that has been taken by now."""
        self._boundaries.append(reached)
        self.worker.wake()

    def queues(self) -> list[TaskQueue]:
        """List the queues bound here."""
        return [bound.queue for bound in list(self._bound.values())]

    # ---- in the thread ----

    def _run(self) -> None:
        try:
            self.stream.bind_thread()
        except Exception as error:
            self._health.lose(f"its thread cannot be set up: {error}")
        while not self._turn_or_rescue():
            pass

    def _turn_or_rescue(self) -> bool:
        try:
            return self._turn()
        except BaseException as error:  # SystemExit as well: whatever is bound here would wait for ever
            self._taken = None
            bound, under_way = list(self._bound.values()), self._under_way
            rescue(error, self.spec.id, self.worker, self._execution, self._health, bound, under_way)
            return self._ending

    def _turn(self) -> bool:
        """Do what comes next; True at the end. A task lives no longer than this: it keeps a segment mapped."""
        under_way = self._under_way
        if self._boundaries:
            self._reach_boundary()
        while under_way and under_way[0].has_ended:
            self._finish_oldest()
        if len(under_way) >= self.device.launch_ahead:
            self._finish_oldest()
        if under_way:
            kind, value = self.worker.next(block=False)
        else:  # what is held for tasks to come is let go of when none is there
            kind, value = self.worker.next(not self._execution.holds_on, ANY_NUMBER)
        if kind == "task":
            self._take(value)
        elif kind == "idle":
            self._relieve()
        elif kind == "wanted":
            self._callbacks.wanted(self.device.id, self.spec.id, *value)
        elif kind == "drained":
            self._callbacks.drained(self.device.id, self.spec.id)
        elif kind == "released":
            self._released(*value)
        elif kind == "violation":
            self._callbacks.drop(self._bound[value[0]].queue, value[1])
        if kind != "woken" or not self._ending:
            return False
        self._finish_all()
        self._execution.let_rest()
        return True

    def _reach_boundary(self) -> None:
        self._finish_all()
        while self._boundaries:
            self._boundaries.popleft()()

    def _released(self, queue: str, *counts: int) -> None:
        bound = self._bound.pop(queue, None)
        try:
            self._execution.let_rest()
            if bound is not None:
                self._execution.forget(bound.queue, last=not self._bound)
                self._count(bound.queue, *counts)
        finally:
            if bound is not None:
                self._callbacks.post(QueueReleased(bound.queue.id))

    def _let_go(self, bound: BoundQueue, task: TaskRecord, question: HeldHead) -> None:
        """Put a task back and its queue into the scheduler's hands, with a question about that task."""
        self._execution.let_rest()
        counts = self.worker.give_up(task)
        del self._bound[bound.queue.id]
        try:
            self._execution.forget(bound.queue, last=not self._bound)
            self._count(bound.queue, *counts)
        finally:
            self._callbacks.ask(question)

    def _count(self, queue: TaskQueue, tasks: int, busy_ns: int, waiting_ns: int, failed: int) -> None:
        queue.count(tasks, busy_ns, waiting_ns, failed)
        self._callbacks.ran(queue.id, self.device.id, tasks, busy_ns, waiting_ns, failed)

    def _take(self, task: TaskRecord) -> None:
        bound = self._bound[task.queue]
        self._taken = task
        try:
            started = self._carry_out(bound, task)
            if started is None:
                return
        except TakenBackError as before:
            self.worker.put_back(task)
            self._put_back(before.tasks)
            return
        except Exception as error:  # kept no longer than this: its traceback keeps the task's session alive
            print_unexpected(error)
            started = Started(bound, task, None, bound.ready.get(task.kernel_id), task.refs)
            started.fail(error)
        finally:
            self._taken = None
        if started.launch is None and not bound.under_way:
            self._settle(started)
            return
        bound.under_way += 1
        self._under_way.append(started)

    def _finish_oldest(self) -> bool:
        """Wait for the oldest task under way and tell its client; False when there is none."""
        if not self._under_way:
            return False
        started = self._under_way.popleft()
        if not started.has_ended:
            self._execution.let_rest()
        self._finish(started)
        self._settle(started)
        return True

    def _relieve(self) -> bool:
        """Let go of what this thread holds, a bit of it; False when that is nothing."""
        return self._execution.let_rest() or self._finish_oldest()

    def _finish(self, started: Started) -> None:
        try:
            self._execution.finish(started)
        except Exception as error:
            print_unexpected(error)
            started.fail(error)
        started.bound.under_way -= 1

    def _finish_all(self) -> None:
        while self._finish_oldest():
            pass

    def _finish_all_of(self, bound: BoundQueue) -> None:
        """See to it that no task of a queue is under way, so that its next one may go back to it."""
        while bound.under_way:
            self._finish_oldest()

    def _settle(self, started: Started) -> None:
        """Tell a client how its task ended, its earlier ones having; one that failed with the device may run again."""
        if started.code is TaskStatus.OK:
            self._health.worked()
            self.worker.complete(started.task, started.code)
            return
        if started.blames:
            self._health.failed(started.message)
            if self._runs_again(started):
                return
        message = self._story(started.bound, started.task, started.message)
        self.worker.complete(started.task, started.code, message)

    def _runs_again(self, started: Started) -> bool:
        """Whether a task, and those behind it that have started, went back to the head of its queue."""
        bound, queue, sequence = started.bound, started.bound.queue, started.task.sequence
        times = queue.failed_task[1] + 1 if queue.failed_task[0] == sequence else 1
        queue.failed_task = (sequence, times)
        if queue.pinned is not None or times > LOST_AFTER or not started.expected:
            return False
        tasks = [started, *(other for other in self._under_way if other.bound is bound)]
        if not may_run_again(tasks):
            return False
        for other in tasks[1:]:
            self._under_way.remove(other)
            self._finish(other)
            if other.blames:
                self._health.failed(other.message)
        if self._taken is not None and self._taken.queue == queue.id:
            raise TakenBackError(tasks)
        self._put_back(tasks)
        return True

    def _put_back(self, tasks: Sequence[Started]) -> None:
        """Let tasks that follow each other run again: here, or where the queue goes when this device is lost."""
        for started in reversed(tasks):
            self.worker.put_back(started.task)
        if self._health.lost is None:
            self.worker.resume(tasks[0].bound.queue.id)

    def _carry_out(self, bound: BoundQueue, task: TaskRecord) -> Started | None:
        """Run or start a task; None when it was put back for a decision."""
        fault = task.fault
        if fault is not None:
            raise LaunchError(TaskStatus(task.status), fault)
        kernel_id = task.kernel_id
        refs = task.refs
        if is_reserved(kernel_id):
            run_reserved(self._execution, bound, kernel_id, refs, self._relieve)
            return Started(bound, task)
        ready = self._execution.ready(bound, kernel_id)
        if ready is None:
            self._finish_all_of(bound)
            self._look_elsewhere(bound, task, kernel_id)
            return None
        if self._is_asked_for(bound, task, ready, refs):
            return None
        if ready.isolated is not None:
            return self._run_isolated(bound, task, ready, refs)
        return self._execution.start(bound, ready, task, refs, self._relieve)

    def _is_asked_for(self, bound: BoundQueue, task: TaskRecord, ready: Ready, refs: list[Ref]) -> bool:
        """Whether the task had to be put back, because another device may be the better one for it."""
        home = bound.queue.home
        if home is not None and home in self._machine.having(ready.kernel):
            self._finish_all_of(bound)
            if self._asks_for_home(bound, task, ready, refs):
                return True
        if task.device_hint and self._machine.wished(task.device_hint) != self.device.id:
            self._finish_all_of(bound)
            return self._asks_for_wish(bound, task, ready)
        return False

    def _run_isolated(
        self, bound: BoundQueue, task: TaskRecord, ready: Ready, refs: list[Ref]
    ) -> Started | None:
        session = bound.queue.session
        check_buffers(ready.kernel.spec, refs)
        scalars = check_scalars(ready.kernel.spec, task.args)
        if not self.isolation.is_ready(session, ready):
            self.worker.put_back(task)
            self.isolation.make_ready(bound, ready)
            return None
        if any(ref[7] != HOST for ref in refs):
            self._execution.bring(session, bound.queue, refs, HOST, self._relieve)
        self._execution.let_rest()
        shapes = self.isolation.run(session, ready, refs, scalars)
        report_shapes(ready, session, refs, shapes)
        return Started(bound, task, None, ready, refs)

    def _look_elsewhere(self, bound: BoundQueue, task: TaskRecord, kernel_id: int) -> bool:
        queue = bound.queue
        failure, queue.failure = queue.failure, None
        if failure is not None and queue.asked_kernel == task.sequence:
            self.worker.complete(task, *failure)
            return False
        kernel = queue.session.kernels.by_id(kernel_id)
        assert kernel is not None
        queue.asked_kernel = task.sequence
        devices = self._machine.having(kernel)
        self._let_go(bound, task, KernelMissing(queue.id, KernelName(kernel.spec.name), devices))
        return False

    def _asks_for_home(self, bound: BoundQueue, task: TaskRecord, ready: Ready, refs: list[Ref]) -> bool:
        queue = bound.queue
        home = queue.home
        if home is None or home not in self._machine.having(ready.kernel):
            return False
        if queue.asked_home == task.sequence:
            return False
        queue.asked_home = task.sequence
        away: dict[int, int] = {}
        for ref in refs:
            away[ref[7]] = away.get(ref[7], 0) + ref[6]
        question = HomePossible(
            queue.id,
            KernelName(ready.kernel.spec.name),
            self._measurements.transfer_ns(away, self._machine.locations[home]),
            self._measurements.gain_ns(ready.kernel.id, self.device.id, home),
        )
        self._let_go(bound, task, question)
        return True

    def _asks_for_wish(self, bound: BoundQueue, task: TaskRecord, ready: Ready) -> bool:
        """Have the queue moved to the device that a task wishes for; it runs here when that is refused."""
        wished = self._machine.wished(task.device_hint)
        if wished is None:
            raise LaunchError(
                TaskStatus.BAD_ARGUMENT,
                f"it wishes for device number {task.device_hint - 1}, there are {len(self._machine.devices)}",
            )
        queue = bound.queue
        unable = queue.pinned is not None or wished not in self._machine.having(ready.kernel)
        if wished == self.device.id or unable or queue.asked_wish == task.sequence:
            return False
        queue.asked_wish = task.sequence
        self._let_go(bound, task, DeviceWished(queue.id, wished))
        return True

    def _story(self, bound: BoundQueue, task: TaskRecord, message: str) -> str:
        kernel = bound.queue.session.kernels.by_id(task.kernel_id)
        name = repr(kernel.spec.name) if kernel is not None else str(task.kernel_id)
        return f"kernel {name} on {self.device.id}: {message}"
