"""Tasks that run on and on beside jobs: who is held for whom, and what the device time of each is."""

from __future__ import annotations

from typing import Any

import pytest

from polymux.core.ids import DeviceId
from polymux.core.jobs.decision import HoldTasks
from polymux.core.jobs.event import YieldReason
from polymux.core.jobs.model import EVERYWHERE, JobDevice, JobId, PreemptionLevel
from tests.contract.job_driver import MS, SECOND, JobDriver

CPU = DeviceId("cpu:0")
ALL = (*EVERYWHERE, PreemptionLevel.IDLE, PreemptionLevel.STOP)


def machine(policy: str = "switchflow") -> JobDriver:
    driver = JobDriver(policy)
    driver.add_device(JobDevice(CPU, 2, 0, "cpu", ALL, "host"))
    return driver


def job(driver: JobDriver, **spec: Any) -> JobId:
    name = driver.open(**({"levels": ALL, "boundary_ns": MS} | spec))
    driver.want(name)
    return name


def held(driver: JobDriver) -> list[str]:
    return [one.reason for _, _, found in driver.log for one in found if isinstance(one, HoldTasks)]


def test_a_burst_of_tasks_is_not_interrupted_for_a_job_of_its_priority():
    driver = machine()
    name = job(driver)
    for _ in range(50):
        driver.tasks_wait(CPU)
        driver.pass_time(400 * MS)
        driver.tasks_done(CPU)
        driver.pass_time(600 * MS)
    assert held(driver) == []
    assert driver.jobs[name].device == CPU


def test_tasks_that_had_a_second_more_than_their_part_are_held_until_the_job_has_had_a_turn():
    driver = machine()
    name = job(driver)
    driver.tasks_wait(CPU)
    driver.pass_time(990 * MS)
    assert held(driver) == []
    driver.pass_time(20 * MS)
    assert len(held(driver)) == 1
    driver.tasks_leave(CPU)
    assert driver.jobs[name].device == CPU
    driver.tasks_wait(CPU)
    assert driver.jobs[name].device == CPU, "what comes meanwhile waits with them"
    driver.pass_time(90 * MS)
    assert driver.jobs[name].device == CPU
    driver.pass_time(20 * MS)
    assert (driver.jobs[name].device, driver.tasks[CPU]) == (None, True)


def test_time_that_tasks_had_counts_with_the_weight_that_they_had_then():
    parts = {}
    for weights in ((100, 100), (100, 1), (1, 1)):
        driver = machine()
        job(driver)
        driver.tasks_wait(CPU, weight=weights[0])
        driver.pass_time(500 * MS)
        driver.tasks_wait(CPU, weight=weights[1])
        parts[weights] = len(held(driver))
    assert parts == {(100, 100): 0, (100, 1): 0, (1, 1): 1}


def test_tasks_with_deadlines_are_not_held_for_jobs_of_their_priority():
    driver = machine()
    name = job(driver)
    driver.tasks_wait(CPU, 0, 5 * MS)
    for _ in range(100):
        driver.pass_time(100 * MS)
        if CPU in driver.leaving:  # they are asked what they are, and have the device again at once
            driver.tasks_leave(CPU, slack_ns=5 * MS)
        assert driver.tasks[CPU]
    assert driver.jobs[name].device is None


def test_tasks_of_higher_priority_that_never_pause_keep_a_job_waiting_however_long():
    driver = machine()
    name = job(driver, priority=-1)
    driver.tasks_wait(CPU)
    for _ in range(200):
        driver.pass_time(50 * MS)
        if CPU in driver.leaving:
            driver.tasks_leave(CPU)
        assert driver.tasks[CPU]
    assert driver.jobs[name].device is None
    assert len(held(driver)) == pytest.approx(10, abs=1), "they are asked what they are once a second"


def test_tasks_that_turn_out_to_be_less_urgent_leave_the_device_to_a_job_that_comes_first():
    driver = machine()
    name = job(driver, priority=3)
    driver.give_way(name, YieldReason.NO_WORK)
    driver.tasks_wait(CPU, 5)
    driver.want(name)
    assert driver.tasks[CPU]
    driver.pass_time(SECOND + MS)
    driver.tasks_leave(CPU, 0)
    assert driver.jobs[name].device == CPU


def test_a_job_of_higher_priority_has_tasks_leave_at_once():
    driver = machine()
    driver.tasks_wait(CPU)
    name = job(driver, priority=1)
    assert held(driver) == ["'job 1' comes first"]
    driver.tasks_leave(CPU)
    assert driver.jobs[name].device == CPU
    driver.pass_time(60 * SECOND)
    assert driver.jobs[name].device == CPU, "whatever time it has had"


def test_what_a_party_did_not_use_is_not_saved_up():
    driver = machine()
    name = job(driver)
    driver.pass_time(100 * SECOND)
    driver.tasks_wait(CPU)
    driver.pass_time(1100 * MS)
    assert len(held(driver)) == 1, "that the job was alone for long gives the tasks nothing"
    driver.tasks_leave(CPU)
    assert driver.jobs[name].device == CPU


def test_time_before_the_job_came_is_not_held_against_tasks():
    driver = machine()
    other = job(driver, priority=-1)
    driver.tasks_wait(CPU)
    for _ in range(100):
        driver.pass_time(SECOND)
        if CPU in driver.leaving:
            driver.tasks_leave(CPU)
    name = job(driver)
    before = len(held(driver))
    driver.pass_time(400 * MS)
    assert len(held(driver)) <= before + 1
    assert (driver.jobs[name].device, driver.jobs[other].device) == (None, None)


@pytest.mark.parametrize("policy", ["switchflow", "time_slicing"])
def test_held_tasks_go_on_when_the_job_that_they_are_held_for_is_over(policy: str):
    driver = machine(policy)
    name = job(driver)
    driver.tasks_wait(CPU)
    if driver.jobs[name].asked is not None:
        driver.give_way(name, YieldReason.STEP)
    driver.pass_time(1100 * MS)
    driver.tasks_leave(CPU)
    assert driver.jobs[name].device == CPU
    driver.close(name)
    assert driver.tasks[CPU]


@pytest.mark.parametrize("policy", ["switchflow", "time_slicing"])
def test_a_pause_of_tasks_that_are_held_does_not_end_the_turn_of_the_job(policy: str):
    driver = machine(policy)
    name = job(driver)
    driver.tasks_wait(CPU)
    if driver.jobs[name].asked is not None:
        driver.give_way(name, YieldReason.STEP)
    driver.pass_time(1100 * MS)
    assert CPU in driver.leaving
    driver.tasks_done(CPU)
    driver.pass_time(MS)
    driver.tasks_wait(CPU)
    assert (driver.jobs[name].device, driver.jobs[name].asked) == (CPU, None)
    driver.pass_time(50 * MS)
    assert (driver.jobs[name].device, driver.jobs[name].asked) == (CPU, None)
