"""Checks what a policy of jobs decided, and changes the state by it."""

from __future__ import annotations

from dataclasses import replace

from polymux.core.errors import BadDecision
from polymux.core.jobs.decision import Grant, HoldTasks, LetTasksRun, TakeBack
from polymux.core.jobs.model import JobId
from polymux.core.jobs.view import JobDeviceState, JobState
from polymux.sched.jobs.state import JobsState


def grant(state: JobsState, decision: Grant, now: int, *, exclusive: bool) -> Grant:
    """Let a job hold a device; fill in what has to be moved.

    Raises
    ------
    BadDecision
        If it must not; nothing changes.
    """
    job = state.view.jobs.get(decision.job)
    device = state.view.devices.get(decision.device)
    if job is None or device is None:
        raise BadDecision(decision, "there is no such job or device")
    if not job.wants or job.device is not None:
        raise BadDecision(decision, "the job waits for no device")
    if all(device is not usable for usable in state.view.usable(job)):
        raise BadDecision(decision, "the job cannot run there")
    if exclusive and device.holders:
        raise BadDecision(decision, f"job {device.holders[0]!r} holds it")
    if exclusive and device.tasks_run:
        raise BadDecision(decision, "tasks run there")
    if exclusive and not state.view.has_room(job, device):
        room = state.view.room_nbytes(job, device)
        raise BadDecision(decision, f"it needs {job.spec.needed_nbytes} bytes, {room} can be had there now")
    here = None if device.spec.memory == "host" else device.spec.id
    moved = 0 if job.home == here else job.spec.memory_nbytes
    if job.inside is not None and job.home != here:
        moved = job.spec.needed_nbytes
    spill = () if here is None else _spill(state, job, device)
    done = replace(decision, source=job.home, nbytes=moved, spill=spill)
    for name in spill:
        other = state.view.jobs[name]
        other.home, other.inside = None, None if other.inside == here else other.inside
    state.hold(job, device, now)
    job.home, job.inside, job.frozen = here, None, False
    return done


def take_back(state: JobsState, decision: TakeBack, now: int) -> TakeBack:
    """Note that a job is to give way; at a level of the operating system it has.

    Raises
    ------
    BadDecision
        If it holds nothing, or cannot be made to give way so; nothing changes.
    """
    job = state.view.jobs.get(decision.job)
    if job is None or job.device is None:
        raise BadDecision(decision, "the job holds no device")
    device = state.view.devices[job.device]
    levels = job.spec.levels_on(device.spec)
    if decision.level not in levels:
        known = ", ".join(level.name for level in levels)
        raise BadDecision(decision, f"the job cannot be made to give way so, only at {known}")
    if job.leaving is not None and decision.level <= job.leaving:
        raise BadDecision(decision, f"the job was asked to give way at {job.leaving.name} before")
    if decision.within_ns < 1:
        raise BadDecision(decision, "it is given no time")
    if job.leaving is None:
        job.taken_back += 1
    if decision.level.by_system:
        at = job.device
        state.let_go(job, now)
        job.inside, job.frozen = at, True
    else:
        job.leaving, job.leave_by_ns = decision.level, now + decision.within_ns
    return decision


def let_tasks_run(state: JobsState, decision: LetTasksRun, now: int, *, exclusive: bool) -> LetTasksRun:
    """Note that tasks may run on a device.

    Raises
    ------
    BadDecision
        If none wait, or a job holds it; nothing changes.
    """
    device = state.view.devices.get(decision.device)
    if device is None or not device.tasks_wait:
        raise BadDecision(decision, "no tasks wait there")
    if exclusive and device.holders:
        raise BadDecision(decision, f"job {device.holders[0]!r} holds it")
    device.tasks_run, device.let_in_ns = True, now
    return decision


def hold_tasks(state: JobsState, decision: HoldTasks) -> HoldTasks:
    """Note that the tasks of a device are to leave it.

    Raises
    ------
    BadDecision
        If none run there, they were told so before, or no job waits for the device; nothing changes.
    """
    device = state.view.devices.get(decision.device)
    if device is None or not device.tasks_run:
        raise BadDecision(decision, "no tasks run there")
    if device.tasks_leaving:
        raise BadDecision(decision, "they were told to leave before")
    waiting = (job for job in state.view.jobs.values() if job.wants and job.device is None)
    if not any(device is usable for job in waiting for usable in state.view.usable(job)):
        raise BadDecision(decision, "no job waits for it")
    device.tasks_leaving = True
    return decision


def _spill(state: JobsState, job: JobState, device: JobDeviceState) -> tuple[JobId, ...]:
    """Choose whose state leaves the memory of a device, so that a job has room: who held it least lately goes first."""
    capacity, name = device.spec.memory_nbytes, device.spec.id
    if not capacity:
        return ()
    there: list[tuple[int, int, JobState, int]] = []
    needed = job.spec.needed_nbytes
    for other in state.view.jobs.values():
        if other is job or (other.home != name and other.inside != name):
            continue
        whole = other.device == name or other.inside == name
        nbytes = other.spec.needed_nbytes if whole else other.spec.memory_nbytes
        needed += nbytes
        if other.device is None and not other.frozen:
            there.append((other.since_ns, other.order, other, nbytes))
    out: list[JobId] = []
    for _, _, other, nbytes in sorted(there, key=lambda entry: entry[:2]):
        if needed <= capacity:
            break
        out.append(other.spec.id)
        needed -= nbytes
    return tuple(out)
