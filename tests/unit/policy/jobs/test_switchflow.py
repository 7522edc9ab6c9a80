"""SwitchFlow: who gives way to whom, how, and where a preempted job goes on."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.jobs.event import JobReported, YieldReason
from polymux.core.jobs.model import JobDevice, JobId, PreemptionLevel
from polymux.policy.jobs.registry import load, names, summaries
from tests.contract.job_driver import MS, SECOND, JobDriver

GIB = 1 << 30
STEP, BOUNDARY, LAUNCHES, IDLE, STOP = PreemptionLevel
FAST, SLOW, CPU = DeviceId("gpu:0"), DeviceId("gpu:1"), DeviceId("cpu:0")
DEVICES = {
    FAST: JobDevice(FAST, 80, 11 * GIB, "fast", (LAUNCHES,), "own", 10e9),
    SLOW: JobDevice(SLOW, 40, 11 * GIB, "slow", (LAUNCHES,), "own", 10e9),
    CPU: JobDevice(CPU, 2, 64 * GIB, "cpu", (IDLE, STOP), "host"),
}
SPEEDS = {"fast": 1.0, "slow": 0.7, "cpu": 0.08}


def machine(*devices: DeviceId, policy: str = "switchflow") -> JobDriver:
    driver = JobDriver(policy)
    for device in devices:
        driver.add_device(DEVICES[device])
    return driver


def train(driver: JobDriver, **spec: Any) -> JobId:
    job = driver.open(**({"memory_nbytes": GIB, "peak_nbytes": 6 * GIB, "speeds": SPEEDS} | spec))
    driver.want(job)
    return job


def give_way(driver: JobDriver, job: JobId) -> None:
    asked = driver.jobs[job].asked
    assert asked is not None
    driver.give_way(job, YieldReason.STEP if asked.level is STEP else YieldReason.BOUNDARY)


def test_a_preempted_job_goes_on_where_it_is_fastest_and_comes_back_when_its_device_is_free():
    driver = machine(FAST, SLOW)
    low = train(driver)
    assert driver.jobs[low].device == FAST
    high = train(driver, priority=1)
    give_way(driver, low)
    assert (driver.jobs[high].device, driver.jobs[low].device) == (FAST, SLOW)
    driver.close(high)
    asked = driver.jobs[low].asked
    assert asked is not None
    assert asked.level is STEP, "without activations to move"
    give_way(driver, low)
    assert driver.jobs[low].device == FAST


def test_a_job_waits_for_its_turn_rather_than_crawl_elsewhere():
    driver = machine(FAST, CPU)
    first, second = train(driver), train(driver)
    assert (driver.jobs[first].device, driver.jobs[second].device) == (FAST, None)
    driver.pass_time(200 * MS)
    give_way(driver, first)
    assert (driver.jobs[first].device, driver.jobs[second].device) == (None, FAST)


def test_a_job_crawls_elsewhere_rather_than_wait_for_a_higher_priority():
    driver = machine(FAST, CPU)
    high, low = train(driver, priority=1), train(driver)
    assert (driver.jobs[high].device, driver.jobs[low].device) == (FAST, CPU)


def test_devices_of_their_own_disturb_nobody():
    driver = machine(FAST, SLOW)
    jobs = [train(driver, priority=priority, speeds={}) for priority in (0, 1)]
    assert [driver.jobs[job].device for job in jobs] == [FAST, SLOW]
    assert all(driver.jobs[job].asked is None for job in jobs)


def test_a_job_leaves_a_device_that_tasks_take_most_of_and_returns_when_they_are_over():
    driver = machine(FAST, SLOW)
    job = train(driver, priority=0)
    for _ in range(40):
        driver.tasks_wait(FAST, 1)
        if driver.jobs[job].asked is not None:
            give_way(driver, job)
        driver.pass_time(80 * MS)
        driver.tasks_done(FAST)
        driver.pass_time(20 * MS)
        if driver.jobs[job].asked is not None:
            give_way(driver, job)
    assert driver.jobs[job].device == SLOW
    for _ in range(20):
        driver.pass_time(SECOND)
        if driver.jobs[job].asked is not None:
            give_way(driver, job)
    assert driver.jobs[job].device == FAST


@pytest.mark.parametrize(
    ("slack_ns", "level"),
    [(None, STOP), (400_000, STOP), (3 * MS, IDLE), (30 * MS, BOUNDARY), (300 * MS, STEP)],
)
def test_the_cheapest_way_that_is_in_time_is_chosen(slack_ns: int | None, level: PreemptionLevel):
    driver = machine(CPU)
    job = train(driver, levels=(BOUNDARY, IDLE, STOP))
    driver.send(JobReported(job, 200 * MS, 20 * MS))
    driver.tasks_wait(CPU, 0, slack_ns)
    decision = next(one for one in driver.log[-1][2] if hasattr(one, "level"))
    assert decision.level is level


@pytest.mark.parametrize(("boundary_ns", "level"), [(100_000, BOUNDARY), (400_000, STOP)])
def test_that_a_job_has_to_answer_counts_when_there_is_no_time_to_lose(
    boundary_ns: int, level: PreemptionLevel
):
    driver = machine(CPU)
    train(driver, levels=(BOUNDARY, STOP), boundary_ns=boundary_ns)
    driver.tasks_wait(CPU)
    decision = next(one for one in driver.log[-1][2] if hasattr(one, "level"))
    assert decision.level is level


@pytest.mark.parametrize(
    ("option", "level"), [("step", STEP), ("boundary", BOUNDARY), ("idle", IDLE), ("stop", STOP)]
)
def test_nothing_beyond_the_level_that_is_asked_for_is_used(option: str, level: PreemptionLevel):
    driver = machine(CPU, policy=f"switchflow={option}")
    job = train(driver, levels=(BOUNDARY, IDLE, STOP))
    driver.send(JobReported(job, 200 * MS, 20 * MS))
    driver.tasks_wait(CPU)
    decision = next(one for one in driver.log[-1][2] if hasattr(one, "level"))
    assert decision.level is level


def test_tasks_that_become_urgent_are_not_kept_waiting_for_a_boundary():
    driver = machine(CPU)
    job = train(driver, levels=(BOUNDARY, STOP), boundary_ns=20 * MS)
    driver.tasks_wait(CPU, 0, 50 * MS)
    asked = driver.jobs[job].asked
    assert asked is not None
    assert asked.level is BOUNDARY
    driver.tasks_wait(CPU, 0, MS)
    assert driver.jobs[job].frozen
    assert driver.tasks[CPU]


def test_a_job_of_higher_priority_keeps_its_device_from_tasks():
    driver = machine(CPU)
    job = train(driver, priority=2)
    driver.tasks_wait(CPU, 1)
    assert driver.jobs[job].asked is None
    driver.give_way(job, YieldReason.NO_WORK)
    assert driver.tasks[CPU]


def test_who_exceeds_the_memory_together_changes_at_the_end_of_a_run():
    driver = machine(FAST)
    first = train(driver)
    driver.send(JobReported(first, 50 * MS, 2 * MS))
    train(driver)
    driver.pass_time(SECOND)
    asked = driver.jobs[first].asked
    assert asked is not None
    assert asked.level is STEP


def test_who_fits_together_changes_at_a_boundary():
    driver = machine(FAST)
    first = train(driver, peak_nbytes=2 * GIB)
    driver.send(JobReported(first, 50 * MS, 2 * MS))
    train(driver, peak_nbytes=2 * GIB)
    driver.pass_time(SECOND)
    asked = driver.jobs[first].asked
    assert asked is not None
    assert asked.level is BOUNDARY


def test_an_interrupted_job_has_the_rest_of_its_turn():
    driver = machine(CPU)
    first, second = train(driver), train(driver)
    driver.pass_time(40 * MS)
    driver.tasks_wait(CPU)
    give_way(driver, first)
    driver.pass_time(500 * MS)
    driver.tasks_done(CPU)
    assert (driver.jobs[first].device, driver.jobs[second].device) == (CPU, None)


def test_an_unknown_policy_or_option_is_refused_with_what_there_is():
    with pytest.raises(InvalidRequest, match="unknown; give one of switchflow, time_slicing, unmanaged"):
        load("fifo")
    with pytest.raises(InvalidRequest, match="give one of step, boundary, launches, idle, stop"):
        load("switchflow=fast")
    with pytest.raises(
        InvalidRequest, match="'time_slicing': 'x' is no slice; give milliseconds from 1 to 60000"
    ):
        load("time_slicing=x")
    with pytest.raises(InvalidRequest, match="has no option"):
        load("unmanaged=1")
    assert set(summaries()) == set(names())
    assert all(summaries().values())
