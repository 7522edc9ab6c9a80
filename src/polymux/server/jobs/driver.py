"""Drives the engine of jobs: tells it what jobs and tasks do, and carries out what it decides.

Whoever has something to tell does so in his own thread and carries the answer out at once: an accelerator thread that
needs the device stops the job itself. A thread of its own only keeps the engine's time.
"""

from __future__ import annotations

import heapq
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns

from polymux.core.decision import WakeAt
from polymux.core.errors import BadDecision, InvalidRequest
from polymux.core.ids import DeviceId, StreamId
from polymux.core.jobs.decision import Evict, Grant, HoldTasks, JobDecision, LetTasksRun, RejectJob, TakeBack
from polymux.core.jobs.event import (
    JobClosed,
    JobDeviceAdded,
    JobDeviceLost,
    JobEvent,
    JobOpened,
    JobReported,
    JobTick,
    JobWants,
    JobYielded,
    TasksDone,
    TasksLeft,
    TasksWaiting,
    YieldReason,
)
from polymux.core.jobs.model import JobDevice, JobId
from polymux.sched.jobs.engine import JobEngine
from polymux.sched.recording import Step
from polymux.server.jobs.custody import Custody
from polymux.server.jobs.door import Door, Gated
from polymux.server.jobs.lease import Lease

GRAIN_NS = 1_000_000
"""The engine is woken at whole multiples of this."""


class JobDriver:
    """All jobs of a server; usable from any thread.

    Parameters
    ----------
    engine : JobEngine
    devices : sequence of JobDevice
        Numbered as applications number them.
    cores : mapping of DeviceId to tuple of int
        Of the host, for devices that are some.
    record : callable, optional
        Is told each step of the engine, in the order of the steps.
    custody : Custody, optional
    """

    def __init__(
        self,
        engine: JobEngine,
        devices: Sequence[JobDevice],
        cores: Mapping[DeviceId, tuple[int, ...]],
        record: Callable[[Step], None] | None = None,
        custody: Custody | None = None,
    ) -> None:
        self._engine = engine
        self._record = record
        self.devices = tuple(devices)
        self.cores = dict(cores)
        self._numbers = {device.id: number for number, device in enumerate(devices)}
        self._lock = threading.Lock()
        self._time = threading.Condition(self._lock)
        self._doors = {device.id: Door(device.id) for device in devices}
        self._most_nbytes = dict.fromkeys(self._doors, 0)
        self._leases: dict[JobId, Lease] = {}
        self._lost: set[DeviceId] = set()
        self.custody = custody if custody is not None else Custody()
        """Of the processes of jobs: who opens a lease gives a process into it first, since that may take a while."""
        self._wake_ups: list[int] = []
        self._times: set[int] = set()
        self._events: list[JobEvent] = []
        self._opened = 0
        self._thread: threading.Thread | None = None
        self._ending = False
        for device in devices:
            self._step(JobDeviceAdded(device))

    # ---- from any thread ----

    def add_stream(self, device: DeviceId, stream: StreamId, worker: Gated) -> None:
        """Make a stream of a device known, before jobs come."""
        self._doors[device].add(stream, worker)

    def new_id(self) -> JobId:
        """Give a job its id."""
        with self._lock:
            self._opened += 1
            return JobId(f"job{self._opened}")

    def open(self, lease: Lease, outer: Lease | None = None) -> None:
        """Begin a lease; one inside another stands for that one, and has its process.

        Raises
        ------
        InvalidRequest
            When the job can run nowhere, with the sizes, or its client has ended; its process is the caller's still.
        """
        with self._lock:
            if lease.session.ended or self._ending:
                raise InvalidRequest(f"session {lease.session.id} has ended")
            if outer is not None and outer.over is not None:
                raise InvalidRequest(f"the lease around job {lease.spec.name!r} has just ended; open it anew")
            lease.outer = outer
            decisions = self._handle(JobOpened(lease.spec))
            refused = next((d for d in decisions if isinstance(d, RejectJob)), None)
            if refused is not None:
                raise InvalidRequest(refused.reason)
            self._leases[lease.spec.id] = lease
            lease.begin()
            if lease.outer is not None:
                lease.outer.inner = lease
                self._rest(lease.outer)
            self._watch_doors()
            self._start_time()

    def around(self, group: int) -> Lease | None:
        """Find the lease that holds a process group as a whole and has none inside yet."""
        with self._lock:
            return next(
                (
                    lease
                    for lease in self._leases.values()
                    if lease.unaware
                    and lease.inner is None
                    and lease.process is not None
                    and lease.process.group
                    and lease.process.pid == group
                ),
                None,
            )

    def has(self, pid: int) -> bool:
        """Tell whether a process is a job's already."""
        with self._lock:
            return any(
                lease.process is not None and lease.process.pid == pid for lease in self._leases.values()
            )

    def wait(self, lease: Lease, *, between_runs: bool) -> None:
        """Note that a job waits at a boundary; its gate opens when it may go on."""
        with self._lock:
            lease = lease.inner or lease
            if lease.over is not None:
                return
            now = monotonic_ns()
            if lease.holds and lease.asked is None:  # it was moved, or nobody has asked it
                lease.open_gate()
                return
            lease.paused = True
            reason = YieldReason.STEP if between_runs else YieldReason.BOUNDARY
            if lease.holds:
                lease.give_way(reason.value, now)
                self._handle(JobYielded(lease.spec.id, reason))
            elif not lease.wants:
                lease.want(now)
                self._handle(JobWants(lease.spec.id))

    def rest(self, lease: Lease) -> None:
        """Note that a job has no work."""
        with self._lock:
            lease = lease.inner or lease
            if lease.over is None:
                self._rest(lease)

    def report(self, lease: Lease, run_ns: int, boundary_ns: int) -> None:
        """Note what a job has measured."""
        with self._lock:
            if lease.over is None:
                lease.figures.run_ns = run_ns or lease.figures.run_ns
                lease.figures.boundary_ns = max(lease.figures.boundary_ns, boundary_ns)
                self._handle(JobReported(lease.spec.id, run_ns, boundary_ns))

    def close(self, lease: Lease) -> None:
        """End a lease; its process goes on without. Twice is fine."""
        with self._lock:
            self._close(lease, "it was closed")

    def wanted(
        self, device: DeviceId, stream: StreamId, priority: int, deadline_ns: int | None, weight: int = 100
    ) -> None:
        """Note that tasks wait on a stream; they are let in now or later. Called in the stream's thread."""
        with self._lock:
            door = self._doors[device]
            if not door.guarded:  # the last job has just gone
                return
            left = door.ask(stream, priority, deadline_ns, monotonic_ns(), weight)
            self._handle((TasksLeft if left else TasksWaiting)(device, *door.urgency()))
            if self._tasks_run(device) and not door.leaving:  # those of another stream have it already
                door.let_in(monotonic_ns())

    def drained(self, device: DeviceId, stream: StreamId) -> None:
        """Note that a stream has no task any more, and none runs. Called in the stream's thread."""
        with self._lock:
            door = self._doors[device]
            if not door.guarded:
                return
            door.drained(stream, monotonic_ns())
            if not door.busy:
                self._handle(TasksDone(device))
            elif not door.occupied and self._tasks_run(device):  # all have left as they were told
                self._handle(TasksLeft(device, *door.urgency()))

    def lose(self, device: DeviceId, reason: str) -> None:
        """Note that a device works no more; its tasks are nobody's concern here from now on."""
        with self._lock:
            if device in self._lost:
                return
            self._lost.add(device)
            self._doors[device].unguard()
            self._handle(JobDeviceLost(device, reason))

    def leases(self) -> list[Lease]:
        """List the leases that have not ended."""
        with self._lock:
            return list(self._leases.values())

    def holding(self) -> list[tuple[int, str, int]]:
        """List who holds what now: session, device, for how long in ns."""
        with self._lock:
            now = monotonic_ns()
            return [
                (lease.session.id, lease.device, lease.held_ns(now) - lease.figures.held_ns)
                for lease in self._leases.values()
                if lease.holds and lease.device is not None
            ]

    def task_waits(self) -> dict[DeviceId, dict[str, int]]:
        """Describe how long tasks waited for jobs to give way, by device; see `Waits.described`."""
        with self._lock:
            return {device: door.waits.described() for device, door in self._doors.items()}

    def memory(self) -> dict[DeviceId, tuple[int, int]]:
        """Bytes that jobs have of each device's memory now, as they declared it, and the most that they ever had."""
        with self._lock:
            view = self._engine.view
            return {name: (view.resident_nbytes(name), most) for name, most in self._most_nbytes.items()}

    def end(self) -> None:
        """End all leases and the thread; what was stopped goes on."""
        with self._lock:
            self._ending = True
            for lease in list(self._leases.values()):
                self._close(lease, "the server has ended")
            self._time.notify()
        self.custody.end()
        if self._thread is not None:
            self._thread.join()

    # ---- under the lock ----

    def _handle(self, event: JobEvent) -> Sequence[JobDecision]:
        """Tell the engine something and carry its answer out; what comes of that is told afterwards."""
        self._events.append(event)
        if len(self._events) > 1:
            return ()
        answer: Sequence[JobDecision] = ()
        try:
            answer = self._step(event)
            at = 1
            while at < len(self._events):  # what is carried out may add some
                self._step(self._events[at])
                at += 1
        finally:
            self._events.clear()
        return answer

    def _step(self, event: JobEvent) -> Sequence[JobDecision]:
        now = monotonic_ns()
        try:
            decisions: Sequence[JobDecision] = self._engine.handle(event, now)
        except (
            BadDecision
        ) as error:  # a defect of the policy; the engine says what has to be done all the same
            traceback.print_exc()
            decisions = error.decisions
        for decision in decisions:
            self._carry_out(decision, now)
        if self._record is not None:
            self._record(Step(now, event, tuple(decisions)))
        return decisions

    def _carry_out(self, decision: JobDecision, now: int) -> None:
        match decision:
            case Grant(job, device):
                lease = self._leases.get(job)
                if lease is not None:
                    lease.grant(device, self._numbers[device], self.cores.get(device, ()), now)
                used = self._engine.view.resident_nbytes(device)
                self._most_nbytes[device] = max(self._most_nbytes[device], used)
            case TakeBack(job, level):
                lease = self._leases.get(job)
                if lease is not None:
                    lease.take_back(level, now)
            case LetTasksRun(device):
                self._doors[device].let_in(monotonic_ns())
            case HoldTasks(device):
                self._doors[device].leave()
            case Evict(job, reason):
                lease = self._leases.get(job)
                if lease is not None:
                    lease.end(reason, now)
                    self._remove(lease)
            case WakeAt(at_ns):
                self._wake_at(at_ns)

    def _tasks_run(self, device: DeviceId) -> bool:
        return self._engine.view.devices[device].tasks_run

    def _rest(self, lease: Lease) -> None:
        lease.rest(monotonic_ns())
        self._handle(JobYielded(lease.spec.id, YieldReason.NO_WORK))

    def _close(self, lease: Lease, reason: str) -> None:
        if lease.over is not None:
            return
        lease.end(reason, monotonic_ns())
        self._handle(JobClosed(lease.spec.id))
        self._remove(lease)

    def _remove(self, lease: Lease) -> None:
        self._leases.pop(lease.spec.id, None)
        inner, lease.inner = lease.inner, None
        if inner is None:
            if lease.process is not None and lease.outer is None:
                self.custody.release(lease.process)
        else:  # it has the process from now on
            inner.outer = None
        outer, lease.outer = lease.outer, None
        if outer is not None and outer.over is None:
            outer.inner = None
            outer.want(monotonic_ns())
            self._handle(JobWants(outer.spec.id))
        self._watch_doors()

    def _watch_doors(self) -> None:
        """Guard exactly the devices that a job may use."""
        for device, door in self._doors.items():
            used = any(lease.spec.allows(device) for lease in self._leases.values())
            if used and not door.guarded and device not in self._lost:
                if door.guard(monotonic_ns()):
                    self._handle(TasksWaiting(device, *door.urgency()))
            elif door.guarded and not used and door.unguard():
                self._handle(TasksDone(device))

    # ---- time ----

    def _wake_at(self, at_ns: int) -> None:
        at_ns = -(-at_ns // GRAIN_NS) * GRAIN_NS
        if at_ns in self._times:
            return
        if not self._wake_ups or at_ns < self._wake_ups[0]:
            self._time.notify()
        self._times.add(at_ns)
        heapq.heappush(self._wake_ups, at_ns)

    def _start_time(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_time, name="polymux-jobs", daemon=True)
            self._thread.start()

    def _keep_time(self) -> None:
        with self._lock:
            while not self._ending:
                now = monotonic_ns()
                if not self._wake_ups or self._wake_ups[0] > now:
                    self._time.wait((self._wake_ups[0] - now) / 1e9 if self._wake_ups else None)
                    continue
                while self._wake_ups and self._wake_ups[0] <= now:
                    self._times.discard(heapq.heappop(self._wake_ups))
                try:
                    self._handle(JobTick())
                    self.custody.check()
                except Exception:  # a defect must not end the thread that everybody waits for
                    traceback.print_exc()
