"""A recording of the engine of jobs gives the same decisions again, or says where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.jobs.decision import JobDecision
from polymux.core.jobs.event import JobDeviceAdded, JobDeviceLost, JobEvent
from polymux.core.jobs.model import JobDevice, JobId, JobSpec, PreemptionLevel
from polymux.policy.jobs.registry import load, names
from polymux.sched.recording import JOBS, Step, write_step
from polymux.sched.replay import Replay, replay
from polymux.sim.jobs import JobLoad, JobsScenario, Program, RequestLoad, simulate_jobs
from polymux.sim.serving import Poisson

MS = 1_000_000
GIB = 1 << 30
GPU = JobDevice(DeviceId("gpu:0"), 80, 10 * GIB, "gpu", (PreemptionLevel.LAUNCHES,), "own", 10e9)
CPU = JobDevice(DeviceId("cpu:0"), 2, 0, "cpu", (PreemptionLevel.IDLE, PreemptionLevel.STOP), "host")


def scenario() -> JobsScenario:
    """Three jobs and requests on two devices, one of which is lost and comes back."""
    step = Program((10 * MS,) * 6, (2, 4))
    jobs = tuple(
        JobLoad(
            JobSpec(
                JobId(name), name, priority, weight, GIB, 6 * GIB, tuple(PreemptionLevel), speeds={"cpu": 0.3}
            ),
            step,
            open_ns=at * MS,
        )
        for name, priority, weight, at in (("a", 0, 100, 0), ("b", 0, 300, 200), ("c", 1, 100, 700))
    )
    served = RequestLoad("model", GPU.id, Program((3 * MS,)), Poisson(30), 1, 20 * MS)
    events: tuple[tuple[int, JobDeviceAdded | JobDeviceLost], ...] = (
        (1500 * MS, JobDeviceLost(GPU.id, "driver reset")),
        (1800 * MS, JobDeviceAdded(GPU)),
    )
    return JobsScenario((GPU, CPU), jobs, (served,), 3000 * MS, seed=1, events=events)


def day(policy: str) -> list[str]:
    lines = [JOBS.write_header(policy) + "\n"]

    def record(event: JobEvent, now: int, decisions: Sequence[JobDecision]) -> None:
        lines.append(write_step(Step(now, event, tuple(decisions))) + "\n")

    simulate_jobs(load(policy), scenario(), record)
    return lines


@pytest.mark.parametrize("policy", names())
def test_a_recorded_simulation_replays_to_the_same_decisions(policy: str) -> None:
    lines = day(policy)
    assert replay(lines) == Replay(policy, steps=len(lines) - 1)
    assert len(lines) > (10 if policy == "unmanaged" else 100)
    assert all(write_step(JOBS.read_step(line)) + "\n" == line for line in lines[1:])


def test_a_decision_that_differs_is_found_at_its_line() -> None:
    lines = day("switchflow")
    number = next(i for i in range(20, len(lines)) if JOBS.read_step(lines[i]).decisions)
    lines[number] = write_step(replace(JOBS.read_step(lines[number]), decisions=())) + "\n"
    found = replay(lines)
    assert found.steps == number - 1
    assert found.difference is not None
    assert found.difference.line == number + 1


def test_a_level_that_does_not_exist_is_refused_by_its_line() -> None:
    lines = day("switchflow")
    number = next(i for i, line in enumerate(lines) if '"level":"' in line)
    lines[number] = lines[number].replace('"level":"', '"level":"VERY_')
    with pytest.raises(InvalidRequest, match=f"line {number + 1}: .*VERY_"):
        replay(lines)
