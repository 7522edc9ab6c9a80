"""Plays a scenario out: carries the decisions of the engine of jobs out in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from polymux.core.decision import WakeAt
from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
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
)
from polymux.core.jobs.model import JobDevice, JobId
from polymux.policy.jobs.interface import JobPolicy
from polymux.sched.jobs.engine import JobEngine
from polymux.sim.jobs.outcome import JobsOutcome
from polymux.sim.jobs.program import Program
from polymux.sim.jobs.requests import Task, TaskQueue
from polymux.sim.jobs.scenario import JobsScenario, RequestLoad
from polymux.sim.jobs.slices import Sharer, Slices
from polymux.sim.jobs.stream import Launcher, Stream
from polymux.sim.jobs.tally import Tally
from polymux.sim.jobs.work import Work

Record = Callable[[JobEvent, int, Sequence[JobDecision]], None]
"""Is told each step of the engine: the event, the time it was given, and what it decided."""

_END, _YIELD, _EVENT, _LAUNCH, _ARRIVAL, _TICK = range(6)
"""What happens first of what happens at the same time."""


def simulate_jobs(policy: JobPolicy, scenario: JobsScenario, record: Record | None = None) -> JobsOutcome:
    """Run the jobs and requests of a scenario under a policy.

    Parameters
    ----------
    policy : JobPolicy
        Fresh: it is used up.
    scenario : JobsScenario
    record : callable, optional
        Is told each step of the engine.

    Returns
    -------
    JobsOutcome

    Raises
    ------
    InvalidRequest
        For served models that do not fit into a device's memory.
    BadDecision
        When the policy raises or decides what must not be carried out.

    Notes
    -----
    Under a policy that keeps holders apart, a job or the tasks have the device to themselves, and their kernels follow
    each other as the host launches them. Under one that does not, `JobsScenario.sharing` says how they
    share the device, every request by itself; a job that comes to a device whose memory does not suffice for
    all fails, as it would. A job stopped by the operating system computes nothing until it goes on.
    """
    return _Simulation(policy, scenario, record).run()


class _Simulation:
    def __init__(self, policy: JobPolicy, scenario: JobsScenario, record: Record | None) -> None:
        self._exclusive = policy.exclusive
        self._engine = JobEngine(policy)
        self._scenario = scenario
        self._record = record
        self._devices = {device.id: _without_models(device, scenario) for device in scenario.devices}
        self._tally = Tally(scenario, self._devices)
        self._works = {load.spec.id: Work(load, scenario.launches_ahead) for load in scenario.jobs}
        self._queues = {device.id: TaskQueue() for device in scenario.devices}
        self._streams = {device.id: Stream() for device in scenario.devices}
        self._slices = {device.id: Slices() for device in scenario.devices}
        self._agenda: list[tuple[int, int, int, Any]] = []
        self._order = 0
        self._now = 0
        self._wakes: set[int] = set()

    def run(self) -> JobsOutcome:
        scenario = self._scenario
        for device in self._devices.values():
            self._handle(JobDeviceAdded(device))
        for at, event in scenario.events:
            self._at(at, _EVENT, partial(self._device, event))
        for load in scenario.jobs:
            self._at(load.open_ns, _EVENT, partial(self._open, load.spec.id))
            if load.close_ns is not None:
                self._at(load.close_ns, _END, partial(self._close, load.spec.id, None))
        self._at(scenario.warmup_ns, _EVENT, self._begin_to_count)
        self._draw_requests()
        while self._agenda and self._agenda[0][0] <= scenario.duration_ns:
            self._now, _, _, act = heapq.heappop(self._agenda)
            act()
        self._now = scenario.duration_ns
        for slices in self._slices.values():
            slices.advance(self._now)
        return self._tally.finish(self._works, self._engine.view, self._now)

    def _at(self, at_ns: int, kind: int, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (at_ns, kind, self._order, act))

    def _begin_to_count(self) -> None:
        for slices in self._slices.values():
            slices.advance(self._now)
        self._tally.begin(self._works, self._engine.view, self._now)

    def _draw_requests(self) -> None:
        scenario = self._scenario
        for index, load in enumerate(scenario.requests):
            if isinstance(load, RequestLoad):
                rng = np.random.default_rng([scenario.seed, index])
                slack = None if load.slo_ns is None else load.slo_ns - load.program.run_ns
                for at in load.arrivals.times_ns(rng, scenario.duration_ns).tolist():
                    start_by = None if slack is None else at + slack
                    task = Task(load.name, at, load.program, load.priority, start_by, weight=load.weight)
                    self._at(at, _ARRIVAL, partial(self._arrive, task, load.device))
            else:
                for at, length in load.spans_ns:
                    task = Task(
                        load.name, at, Program((length,)), load.priority, at + load.slack_ns, is_span=True
                    )
                    self._at(at, _ARRIVAL, partial(self._arrive, task, load.device))

    # ---- jobs ----

    def _open(self, job: JobId) -> None:
        self._handle(JobOpened(self._works[job].load.spec))
        if job in self._engine.view.jobs:
            self._handle(JobWants(job))

    def _close(self, job: JobId, failure: str | None) -> None:
        work = self._works[job]
        if work.over or job not in self._engine.view.jobs:
            return
        work.end(self._now, failure)
        if self._scenario.sharing == "slices":
            for device in self._slices:
                self._await_end(device)
        self._handle(JobClosed(job))

    def _grant(self, decision: Grant) -> None:
        work = self._works[decision.job]
        spec = work.load.spec
        device = self._devices[decision.device]
        spilled = sum(self._works[name].resident_nbytes(self._now) for name in decision.spill)
        at = self._now + self._scenario.resume_ns + device.transfer_ns(spilled)
        at += work.move_ns(decision, device, self._devices)
        work.note_grant(decision, self._now)
        if self._exclusive:
            work.training.begin(at, spec.speed(device))
            if work.load.runs is not None:
                done_at, token = work.training.end_ns(work.load.runs), work.token
                self._at(done_at, _END, partial(self._finish, decision.job, token))
            return
        if self._engine.view.resident_nbytes(device.id) > self._capacity(device.id):
            self._at(self._now, _END, partial(self._close, decision.job, "out of memory"))
            return
        program = work.load.program.scaled(spec.speed(device))
        if self._scenario.sharing == "slices":
            work.launcher = sharer = Sharer(program)
            work.begin_run = partial(self._share, device.id, sharer, partial(self._end_run, work))
        else:
            work.launcher = launcher = Launcher(program, self._streams[device.id])
            work.begin_run = partial(self._launch, launcher, partial(self._end_run, work))
        self._at(at, _LAUNCH, work.begin_run)

    def _capacity(self, device: DeviceId) -> float:
        return self._devices[device].memory_nbytes or float("inf")

    def _finish(self, job: JobId, token: int) -> None:
        work = self._works[job]
        if work.token == token and not work.over:
            work.done_ns = self._now
            self._close(job, None)

    def _take_back(self, decision: TakeBack) -> None:
        work = self._works[decision.job]
        work.taken_back += self._now >= self._scenario.warmup_ns
        if decision.level.by_system:
            work.pause(self._now)
        elif not work.load.deaf:
            at, reason = work.training.leave(decision.level, self._now)
            work.token += 1
            token = work.token
            self._at(at, _YIELD, partial(self._yield, token, JobYielded(decision.job, reason)))

    def _yield(self, token: int, event: JobYielded) -> None:
        job = event.job
        work = self._works[job]
        if work.token != token or work.over:
            return
        work.pause(self._now)
        if work.training.runs(self._now) >= 1:
            program = work.training.program
            self._handle(JobReported(job, program.run_ns, program.longest_boundary_ns))
        self._handle(event)

    def _end_run(self, work: Work) -> None:
        launcher = work.launcher
        if launcher is None or launcher.stopped or work.begin_run is None:
            return
        launcher.begin_again()
        if work.load.runs is not None and launcher.runs >= work.load.runs:
            work.done_ns = self._now
            self._close(work.load.spec.id, None)
            return
        work.begin_run()

    # ---- together on a device ----

    def _launch(self, launcher: Launcher, ended: Callable[[], None]) -> None:
        """Launch the next kernel of a run into the stream of its device."""
        if launcher.stopped:
            return
        at, is_last = launcher.launch(self._now)
        if is_last:
            self._at(at, _END, ended)
        else:
            self._at(at, _LAUNCH, partial(self._launch, launcher, ended))

    def _share(self, device: DeviceId, sharer: Sharer, ended: Callable[[], None]) -> None:
        """Begin a run beside those of other processes."""
        if not sharer.stopped:
            self._slices[device].add(sharer, ended, self._now)
            self._await_end(device)

    def _await_end(self, device: DeviceId) -> None:
        slices = self._slices[device]
        at = slices.next_end_ns(self._now)
        if at is not None:
            self._at(at, _END, partial(self._end_shared, device, slices.token))

    def _end_shared(self, device: DeviceId, token: int) -> None:
        slices = self._slices[device]
        if slices.token == token:
            for ended in slices.take_ended(self._now):
                ended()
            self._await_end(device)

    # ---- tasks ----

    def _arrive(self, task: Task, device: DeviceId) -> None:
        queue = self._queues[device]
        queue.put(task)
        self._tally.arrive(task)
        if not self._exclusive:
            if not queue.may_run:
                self._handle(TasksWaiting(device, task.priority, None))
            else:
                self._start_threads(device)
            return
        if queue.may_run:
            return
        wish = queue.wish()
        if wish == queue.told:
            return
        if queue.wanted_since_ns is None:
            queue.wanted_since_ns = self._now
        queue.told = wish
        self._handle(TasksWaiting(device, *wish))

    def _let_run(self, device: DeviceId) -> None:
        queue = self._queues[device]
        queue.may_run, queue.leaving = True, False
        if not self._exclusive:
            self._start_threads(device)
            return
        if queue.wanted_since_ns is not None:
            self._tally.wait(queue.wanted_since_ns, self._now)
        queue.wanted_since_ns = None
        self._at(self._now + self._scenario.start_ns, _END, partial(self._next_task, device))

    def _next_task(self, device: DeviceId) -> None:
        queue = self._queues[device]
        if not queue.may_run:  # the device was lost
            return
        if not queue.waiting:
            queue.may_run, queue.told = False, None
            self._handle(TasksDone(device))
            return
        if queue.leaving:
            queue.may_run, queue.wanted_since_ns, queue.told = False, self._now, queue.wish()
            self._handle(TasksLeft(device, *queue.told))
            return
        task = queue.take()
        if task.is_span:
            self._tally.answer(task, self._now)
        self._at(self._now + task.program.run_ns, _END, partial(self._end_task, device, task))

    def _end_task(self, device: DeviceId, task: Task) -> None:
        queue = self._queues[device]
        if queue.running is not task:
            return
        queue.running = None
        if not task.is_span:
            self._tally.answer(task, self._now)
        self._next_task(device)

    def _start_threads(self, device: DeviceId) -> None:
        queue = self._queues[device]
        while queue.waiting:
            task = queue.take()
            answer = partial(self._answer, task)
            if self._scenario.sharing == "slices":
                if task.is_span:
                    answer()
                self._share(device, Sharer(task.program), answer)
                continue
            launcher = Launcher(task.program, self._streams[device])
            if task.is_span:  # it begins when all that was launched before has ended
                self._at(max(self._now, launcher.stream.free_ns), _END, answer)
            self._launch(launcher, answer)
        queue.running = None

    def _answer(self, task: Task) -> None:
        self._tally.answer(task, self._now)

    # ---- devices and decisions ----

    def _device(self, event: JobDeviceAdded | JobDeviceLost) -> None:
        if isinstance(event, JobDeviceLost):
            queue = self._queues[event.device]
            if queue.running is not None:  # it is run again when the device is back
                queue.put(queue.running)
            queue.running, queue.may_run, queue.told, queue.wanted_since_ns = None, False, None, None
        self._handle(event)
        if isinstance(event, JobDeviceAdded):
            queue = self._queues[event.device.id]
            if queue.waiting:
                queue.told, queue.wanted_since_ns = queue.wish(), self._now
                self._handle(TasksWaiting(event.device.id, *queue.told))

    def _handle(self, event: JobEvent) -> None:
        decisions = self._engine.handle(event, self._now)
        if self._record is not None:
            self._record(event, self._now, decisions)
        for decision in decisions:
            self._carry_out(decision)
        self._tally.look(self._engine.view)

    def _carry_out(self, decision: JobDecision) -> None:
        match decision:
            case Grant():
                self._grant(decision)
            case TakeBack():
                self._take_back(decision)
            case LetTasksRun():
                self._let_run(decision.device)
            case HoldTasks():
                self._queues[decision.device].leaving = True
            case Evict() | RejectJob():
                self._works[decision.job].end(self._now, decision.reason)
            case WakeAt():
                at = max(decision.at_ns, self._now + 1)
                if at not in self._wakes:
                    self._wakes.add(at)
                    self._at(at, _TICK, self._tick)

    def _tick(self) -> None:
        self._wakes.discard(self._now)
        self._handle(JobTick())


def _without_models(device: JobDevice, scenario: JobsScenario) -> JobDevice:
    """A device with the memory that served models leave on it."""
    if not device.memory_nbytes:
        return device
    used = sum(
        load.memory_nbytes
        for load in scenario.requests
        if isinstance(load, RequestLoad) and load.device == device.id
    )
    if used >= device.memory_nbytes:
        raise InvalidRequest(
            f"scenario: the served models take {used} bytes, {device.id} has {device.memory_nbytes}; serve fewer there"
        )
    return replace(device, memory_nbytes=device.memory_nbytes - used)
