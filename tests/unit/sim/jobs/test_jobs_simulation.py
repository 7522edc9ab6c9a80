"""Jobs and requests in virtual time: who computes when, what is kept, what it costs to move and to wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.jobs.event import JobDeviceAdded, JobDeviceLost
from polymux.core.jobs.model import JobDevice, JobId, JobSpec, PreemptionLevel
from polymux.policy.jobs.registry import load, names
from polymux.sim.jobs import (
    JobLoad,
    JobsOutcome,
    JobsScenario,
    Program,
    RequestLoad,
    TaskTrace,
    simulate_jobs,
)
from polymux.sim.serving import Poisson, Timestamps, Uniform

MS = 1_000_000
SECOND = 1000 * MS
GIB = 1 << 30
STEP, BOUNDARY, LAUNCHES, IDLE, STOP = PreemptionLevel
GPU = JobDevice(DeviceId("gpu:0"), 80, 10 * GIB, "gpu", (LAUNCHES,), "own", 10e9)
SLOW = JobDevice(DeviceId("gpu:1"), 40, 10 * GIB, "slow", (), "own", 10e9)
CPU = JobDevice(DeviceId("cpu:0"), 2, 0, "cpu", (IDLE, STOP), "host")
STEP_100 = Program((10 * MS,) * 10, tuple(range(1, 10)), 10_000)
"""A step of 100 ms in ten parts."""
REQUEST = Program((MS,) * 5, launch_ns=10_000)


def train(name: str = "train", program: Program = STEP_100, **fields: Any) -> JobLoad:
    own = {"runs", "open_ns", "close_ns", "move_ns", "deaf"} & set(fields)
    of_load = {key: fields.pop(key) for key in own}
    spec = JobSpec(
        JobId(name),
        name,
        boundary_ns=program.longest_boundary_ns,
        launches_ns=program.longest_kernel_ns,
        **fields,
    )
    return JobLoad(spec, program, **of_load)


def scenario(
    *jobs: JobLoad, devices: tuple[JobDevice, ...] = (GPU,), rate: float = 0.0, **fields: Any
) -> JobsScenario:
    requests = (RequestLoad("model", devices[0].id, REQUEST, Poisson(rate), 1),) if rate else ()
    return JobsScenario(devices, jobs, requests, fields.pop("duration_ns", 20 * SECOND), **fields)


def run(policy: str, what: JobsScenario) -> JobsOutcome:
    return simulate_jobs(load(policy), what)


@pytest.mark.parametrize("policy", names())
def test_a_job_alone_keeps_all_of_its_device(policy: str):
    outcome = run(policy, scenario(train()))
    assert outcome.jobs[JobId("train")].fraction == pytest.approx(1.0, abs=0.001)
    assert outcome.jobs[JobId("train")].runs == pytest.approx(200, abs=0.2)


@pytest.mark.parametrize("policy", names())
def test_requests_without_jobs_wait_only_for_each_other(policy: str):
    what = scenario()
    what = replace(what, requests=(RequestLoad("model", GPU.id, REQUEST, Uniform(20)),))
    outcome = run(policy, what)
    latencies = outcome.requests["model"].latencies_ns
    assert len(latencies) == pytest.approx(400, abs=1)
    assert max(latencies) < 6 * MS


@pytest.mark.parametrize("policy", names())
def test_the_same_scenario_gives_the_same_outcome_to_the_nanosecond(policy: str):
    what = scenario(train(), train("other", weight=300), rate=30, duration_ns=3 * SECOND)
    assert run(policy, what) == run(policy, what)


def test_switchflow_answers_after_one_part_time_slicing_after_a_step_and_unmanaged_after_what_was_launched():
    p99 = {}
    for policy in names():
        outcome = run(policy, scenario(train(levels=(BOUNDARY,)), rate=20))
        latency = outcome.requests["model"].percentile_ns(99)
        assert latency is not None
        p99[policy] = latency / MS
        assert outcome.jobs[JobId("train")].fraction > 0.85
    assert p99["switchflow"] < 25
    assert 90 < p99["unmanaged"] < 130
    assert p99["time_slicing"] > 90


def test_processes_that_the_driver_keeps_apart_take_twice_as_long_and_end_their_runs():
    what = replace(scenario(train(runs=30), rate=20), sharing="slices")
    outcome = run("unmanaged", what)
    assert outcome.jobs[JobId("train")].done_ns == pytest.approx(3.35 * SECOND, rel=0.05)
    beside = run("unmanaged", replace(what, jobs=(train(),)))
    latency = beside.requests["model"].percentile_ns(50)
    assert latency is not None
    assert 9.9 * MS < latency < 11 * MS
    assert beside.jobs[JobId("train")].fraction == pytest.approx(0.9, abs=0.02)


def test_training_keeps_what_requests_leave_but_for_a_hundredth():
    outcome = run("switchflow", scenario(train(), rate=40))
    served = len(outcome.requests["model"].latencies_ns) * REQUEST.run_ns
    left = 1 - served / (20 * SECOND)
    assert left - 0.01 < outcome.jobs[JobId("train")].fraction < left + 0.001


def test_waits_for_the_device_are_bounded_by_the_longest_kernel_in_flight():
    outcome = run("switchflow", scenario(train(levels=(BOUNDARY, LAUNCHES)), rate=40))
    assert max(outcome.waits_ns) <= STEP_100.longest_kernel_ns
    assert max(outcome.waits_ns) > 8 * MS


def test_a_processor_stops_a_job_at_once():
    what = scenario(train(levels=(BOUNDARY, IDLE, STOP)), devices=(CPU,), rate=40)
    outcome = run("switchflow", what)
    assert max(outcome.waits_ns) == 0
    assert outcome.jobs[JobId("train")].fraction > 0.78


@pytest.mark.parametrize("weights", [(100, 100), (100, 300)])
def test_jobs_share_a_device_by_weight(weights: tuple[int, int]):
    jobs = [train(f"j{weight}-{index}", weight=weight) for index, weight in enumerate(weights)]
    outcome = run("switchflow", scenario(*jobs, duration_ns=60 * SECOND))
    parts = [job.fraction for job in outcome.jobs.values()]
    assert parts[0] / sum(parts) == pytest.approx(weights[0] / sum(weights), abs=0.03)
    assert sum(parts) > 0.99


@pytest.mark.parametrize("policy", ["switchflow", "time_slicing"])
@pytest.mark.parametrize("weights", [(100, 100), (100, 300)])
def test_requests_that_never_pause_leave_a_job_of_their_priority_its_part(
    policy: str, weights: tuple[int, int]
):
    flood = RequestLoad("model", GPU.id, REQUEST, Uniform(400), weight=weights[1])
    what = replace(scenario(train(weight=weights[0]), duration_ns=60 * SECOND), requests=(flood,))
    outcome = run(policy, what)
    part = weights[0] / sum(weights)
    assert outcome.jobs[JobId("train")].fraction == pytest.approx(part, abs=0.05)
    served = len(outcome.requests["model"].latencies_ns) * REQUEST.run_ns
    assert served / (60 * SECOND) == pytest.approx(1 - part, abs=0.05)


def test_two_jobs_that_exceed_the_memory_together_finish_and_unmanaged_one_fails():
    jobs = [train(name, memory_nbytes=GIB, peak_nbytes=7 * GIB, runs=30) for name in ("a", "b")]
    outcome = run("switchflow", scenario(*jobs))
    assert all(job.done_ns is not None and job.failure is None for job in outcome.jobs.values())
    assert outcome.peak_nbytes[GPU.id] == 8 * GIB
    failed = run("unmanaged", scenario(*jobs)).jobs
    assert [job.failure for job in failed.values()] == [None, "out of memory"]


def test_weights_that_do_not_fit_together_are_spilled_and_brought_back():
    jobs = [train(name, memory_nbytes=6 * GIB, peak_nbytes=7 * GIB, runs=60) for name in ("a", "b")]
    outcome = run("switchflow", scenario(*jobs, duration_ns=60 * SECOND))
    assert all(job.done_ns is not None for job in outcome.jobs.values())
    assert outcome.peak_nbytes[GPU.id] <= 10 * GIB


def test_a_victim_goes_on_elsewhere_and_comes_back():
    speeds = {"slow": 0.7}
    low = train("low", speeds=speeds, memory_nbytes=GIB)
    high = train(
        "high", speeds=speeds, priority=1, memory_nbytes=GIB, open_ns=5 * SECOND, close_ns=15 * SECOND
    )
    outcome = run("switchflow", scenario(low, high, devices=(GPU, SLOW)))
    assert outcome.jobs[JobId("high")].fraction > 0.97
    assert outcome.jobs[JobId("low")].fraction == pytest.approx(0.85, abs=0.03)
    assert outcome.jobs[JobId("low")].moves == 2


def test_a_job_that_is_deaf_is_evicted_and_the_requests_are_answered():
    what = scenario(train(deaf=True, levels=(BOUNDARY,)), rate=1, duration_ns=60 * SECOND)
    outcome = run("switchflow", what)
    assert "did not" in str(outcome.jobs[JobId("train")].failure)
    assert outcome.requests["model"].unanswered_ns == []


def test_a_job_whose_device_is_lost_goes_on_where_it_can_and_requests_when_it_is_back():
    events = ((5 * SECOND, JobDeviceLost(GPU.id, "unplugged")), (10 * SECOND, JobDeviceAdded(GPU)))
    what = scenario(train(memory_nbytes=GIB), devices=(GPU, SLOW), rate=20, events=events)
    outcome = run("switchflow", what)
    assert outcome.jobs[JobId("train")].fraction > 0.8
    assert outcome.jobs[JobId("train")].failure is None
    assert len(outcome.requests["model"].unanswered_ns) < 3


def test_the_spans_of_a_trace_begin_when_planned_but_for_a_kernel():
    spans = tuple((at * 50 * MS, 20 * MS) for at in range(1, 200))
    what = replace(
        scenario(train()), requests=(TaskTrace("batches", GPU.id, spans, 1, MS),), duration_ns=10 * SECOND
    )
    outcome = run("switchflow", what)
    assert len(outcome.requests["batches"].latencies_ns) == 199
    assert max(outcome.requests["batches"].latencies_ns) < 11 * MS
    assert outcome.jobs[JobId("train")].fraction == pytest.approx(0.6, abs=0.02)


def test_what_is_not_answered_by_the_end_counts_with_the_time_it_has_taken():
    what = replace(
        scenario(), requests=(RequestLoad("model", GPU.id, REQUEST, Uniform(400)),), duration_ns=SECOND
    )
    requests = run("switchflow", what).requests["model"]
    assert len(requests.unanswered_ns) > 150, "twice what the device can do"
    latest = requests.percentile_ns(99)
    assert latest is not None
    assert latest > 450 * MS


def test_models_that_leave_no_memory_are_refused_with_the_sizes():
    requests = (RequestLoad("model", GPU.id, REQUEST, Timestamps((0,)), memory_nbytes=10 * GIB),)
    with pytest.raises(InvalidRequest, match=f"take {10 * GIB} bytes, gpu:0 has {10 * GIB}"):
        run("switchflow", replace(scenario(), requests=requests))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"devices": ()}, "no devices"),
        ({"devices": (GPU, GPU)}, "device 'gpu:0' is given twice"),
        ({"jobs": (train(), train())}, "job 'train' is given twice"),
        ({"warmup_ns": 21 * SECOND}, "duration above the warm-up"),
        (
            {"requests": (RequestLoad("m", DeviceId("x:0"), REQUEST, Poisson(1)),)},
            "go to x:0; there are gpu:0",
        ),
    ],
)
def test_a_scenario_that_cannot_be_is_refused(fields: dict[str, Any], problem: str):
    with pytest.raises(InvalidRequest, match=problem):
        replace(scenario(), **fields)
