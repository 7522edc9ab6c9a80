"""How a device is taken away from a job: the cheapest way that is in time."""

from __future__ import annotations

from polymux.core.jobs.decision import TakeBack
from polymux.core.jobs.model import PreemptionLevel
from polymux.core.jobs.view import JobDeviceState, JobState

MS = 1_000_000

IDLE_WAIT_NS = MS
"""What a neighbour that computes on idle cores costs: about a millisecond of each request on two cores."""
STOP_WAIT_NS = 100_000
"""From the decision to stop a process until it computes no more."""
ANSWER_NS = 300_000
"""From when a job has come to where it gives way until it has been told and the device is another's."""
AT_ONCE_NS = MS // 2
"""Time that whoever wants a device as soon as possible is kept waiting, if it can be helped."""
_LEAST_PATIENCE_NS = 100 * MS
_UNKNOWN_PATIENCE_NS = 10_000 * MS


def wait_ns(job: JobState, level: PreemptionLevel) -> int | None:
    """Longest time until a device is free after its job was asked at a level; None: not known."""
    match level:
        case PreemptionLevel.IDLE:
            return IDLE_WAIT_NS
        case PreemptionLevel.STOP:
            return STOP_WAIT_NS
        case PreemptionLevel.STEP:
            own_ns = job.run_ns
        case PreemptionLevel.BOUNDARY:
            own_ns = job.boundary_ns or job.run_ns
        case _:
            own_ns = job.spec.launches_ns
    return own_ns + ANSWER_NS if own_ns else None


def cheapest(job: JobState, levels: tuple[PreemptionLevel, ...], slack_ns: int) -> PreemptionLevel:
    """Choose the cheapest of some levels at which a job gives way within `slack_ns`; else the quickest."""
    waits = [(level, wait_ns(job, level)) for level in levels]
    for level, wait in waits:
        if wait is not None and wait <= slack_ns:
            return level
    known = [(wait, level) for level, wait in waits if wait is not None]
    return min(known)[1] if known else levels[-1]


def take_back(
    job: JobState, device: JobDeviceState, level: PreemptionLevel, slack_ns: int, reason: str
) -> TakeBack:
    """Take a device away at a level; where the job could be stopped instead, it has as long as is in time."""
    wait = wait_ns(job, level)
    if PreemptionLevel.STOP in job.spec.levels_on(device.spec):
        within_ns = max(slack_ns, 2 * wait if wait is not None else 0, MS)
    else:
        within_ns = max(4 * wait, _LEAST_PATIENCE_NS) if wait is not None else _UNKNOWN_PATIENCE_NS
    return TakeBack(job.spec.id, level, within_ns, reason)
