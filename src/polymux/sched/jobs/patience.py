"""What follows when a job does not give way: it is stopped where that is possible, else evicted after a bound."""

from __future__ import annotations

from polymux.core.jobs.decision import Evict, JobDecision, TakeBack
from polymux.core.jobs.model import EVERYWHERE, PreemptionLevel
from polymux.core.jobs.view import JobDeviceState, JobState
from polymux.sched.jobs.apply import take_back
from polymux.sched.jobs.state import JobsState


def insist(state: JobsState, decisions: list[JobDecision], now: int, evict_after_ns: int) -> None:
    """Stop or evict the jobs whose time to give way is over; ask those to go that hold what no longer works."""
    for job in list(state.view.jobs.values()):
        if job.device is None:
            continue
        device = state.view.devices[job.device]
        if job.leaving is None:
            if device.lost is not None:
                _leave_lost(state, job, device, decisions, now, evict_after_ns)
        elif now >= job.leave_by_ns:
            _go_further(state, job, device, decisions, now, evict_after_ns)


def _leave_lost(
    state: JobsState,
    job: JobState,
    device: JobDeviceState,
    decisions: list[JobDecision],
    now: int,
    evict_after_ns: int,
) -> None:
    levels = job.spec.levels_on(device.spec)
    level = next((level for level in reversed(EVERYWHERE) if level in levels), levels[-1])
    reason = f"{device.spec.id} was lost: {device.lost}"
    decisions.append(take_back(state, TakeBack(job.spec.id, level, evict_after_ns, reason), now))


def _go_further(
    state: JobsState,
    job: JobState,
    device: JobDeviceState,
    decisions: list[JobDecision],
    now: int,
    evict_after_ns: int,
) -> None:
    level, name = job.leaving, job.spec.id
    assert level is not None
    asked = f"it was asked to give {device.spec.id} back at {level.name} and did not"
    if PreemptionLevel.STOP in job.spec.levels_on(device.spec):
        stop = TakeBack(name, PreemptionLevel.STOP, evict_after_ns, asked)
        decisions.append(take_back(state, stop, now))
    elif now < job.leave_by_ns + evict_after_ns or not _is_wanted(state, job, device):
        return
    else:
        state.remove(name, now)
        decisions.append(Evict(name, f"{asked} within {(now - job.leave_by_ns) / 1e9:.1f} s"))


def _is_wanted(state: JobsState, job: JobState, device: JobDeviceState) -> bool:
    if device.lost is not None or device.tasks:
        return True
    return any(
        other.wants and other.device is None and other.spec.allows(device.spec.id)
        for other in state.view.jobs.values()
        if other is not job
    )


def next_ns(state: JobsState, now: int, evict_after_ns: int) -> int | None:
    """When a job's time to give way is over; None: none is asked to."""
    times: list[int] = []
    for job in state.view.jobs.values():
        if job.leaving is not None:
            end_ns = job.leave_by_ns if now < job.leave_by_ns else job.leave_by_ns + evict_after_ns
            times.append(end_ns if now < end_ns else now + evict_after_ns)
    return min(times, default=None)
