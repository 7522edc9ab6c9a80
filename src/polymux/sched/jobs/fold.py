"""What an event changes in the state of the engine of jobs, before the policy is asked."""

from __future__ import annotations

from polymux.core.errors import InvalidRequest
from polymux.core.jobs.decision import JobDecision, RejectJob
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
from polymux.core.jobs.model import JobSpec
from polymux.core.jobs.view import JobDeviceState, JobState, unusable
from polymux.sched.jobs.state import JobsState

_FORGETS = 16
"""A longest time between boundaries that is not reached again loses this part of itself with each report."""


def fold(state: JobsState, event: JobEvent, decisions: list[JobDecision], now: int) -> None:
    """Fold an event in; what follows from it without the policy goes to `decisions`.

    Raises
    ------
    InvalidRequest
        If it cannot be; nothing changes.
    """
    match event:
        case JobOpened(spec):
            _open(state, spec, decisions, now)
        case JobClosed() | JobWants() | JobYielded() | JobReported():
            job = state.view.jobs.get(event.job)
            if job is not None:  # of a job that was evicted or rejected, the driver may tell things late
                _fold_job(state, event, job, now)
        case TasksWaiting() | TasksLeft() | TasksDone():
            _fold_tasks(event, state.device(event.device), now)
        case JobDeviceAdded(spec):
            known = state.view.devices.get(spec.id)
            if known is not None and known.lost is None:
                raise InvalidRequest(f"device {spec.id} is there already")
            still = [name for name, job in state.view.jobs.items() if job.device == spec.id]
            state.view.devices[spec.id] = JobDeviceState(spec, still)
        case JobDeviceLost(name, reason):
            _lose(state, state.device(name), reason, now)
        case JobTick():
            pass


def _open(state: JobsState, spec: JobSpec, decisions: list[JobDecision], now: int) -> None:
    view = state.view
    if spec.id in view.jobs:
        raise InvalidRequest(f"job {spec.id!r} is open already; give each job an id of its own")
    problems = [problem for device in view.devices.values() if (problem := unusable(spec, device.spec))]
    if len(problems) == len(view.devices):
        told = "; ".join(problems) or "there is no device for jobs"
        decisions.append(RejectJob(spec.id, f"job {spec.name!r} can run nowhere: {told}"))
        return
    state.jobs_opened += 1
    view.jobs[spec.id] = JobState(spec, state.jobs_opened, since_ns=now, boundary_ns=spec.boundary_ns)


def _fold_job(
    state: JobsState, event: JobClosed | JobWants | JobYielded | JobReported, job: JobState, now: int
) -> None:
    match event:
        case JobClosed():
            state.remove(job.spec.id, now)
        case JobWants():
            state.begin_to_wait(job, now)
        case JobYielded(_, reason):
            _give_way(state, job, reason, now)
        case JobReported(_, run_ns, boundary_ns):
            if run_ns > 0:
                job.run_ns = run_ns if not job.run_ns else (3 * job.run_ns + run_ns) // 4
            if boundary_ns > 0:
                job.boundary_ns = max(boundary_ns, job.boundary_ns - job.boundary_ns // _FORGETS)


def _give_way(state: JobsState, job: JobState, reason: YieldReason, now: int) -> None:
    if reason is YieldReason.STOPPED:  # noted when it was decided
        return
    if job.device is not None:
        device = state.view.devices[job.device]
        gone = device.lost is not None and device.spec.memory == "own"
        job.inside = None if gone else job.device
        state.let_go(job, now)
    job.frozen = False
    if reason is not YieldReason.BOUNDARY:
        job.inside = None
    if reason is not YieldReason.NO_WORK:
        state.begin_to_wait(job, now)
    if reason is YieldReason.NO_WORK and job.wants:
        job.waited_ns += now - job.since_ns
        job.wants, job.since_ns = False, now


def _fold_tasks(event: TasksWaiting | TasksLeft | TasksDone, device: JobDeviceState, now: int) -> None:
    if not isinstance(event, TasksWaiting):
        _end_turn_of_tasks(device, now)
    if isinstance(event, TasksDone):
        device.tasks_ns = device.tasks_used_ns(now)
        device.tasks, device.tasks_since_ns = False, now
        return
    if not device.tasks:
        device.tasks, device.tasks_since_ns = True, now
    device.tasks_priority, device.tasks_deadline_ns = event.priority, event.deadline_ns
    device.tasks_weight = event.weight


def _end_turn_of_tasks(device: JobDeviceState, now: int) -> None:
    device.tasks_had_ns = device.tasks_held_ns(now)
    device.tasks_run = device.tasks_leaving = False


def _lose(state: JobsState, device: JobDeviceState, reason: str, now: int) -> None:
    device.lost = reason or "it does not work"
    device.tasks_ns = device.tasks_used_ns(now)
    _end_turn_of_tasks(device, now)
    device.tasks = False
    if device.spec.memory == "host":
        return
    name = device.spec.id
    for job in state.view.jobs.values():
        if job.home == name:
            job.home = None
        if job.inside == name:
            job.inside, job.frozen = None, False
