"""Every policy for jobs that is registered, under any order of events: what a driver of the engine relies on."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from polymux.core.ids import DeviceId
from polymux.core.jobs.event import JobReported, YieldReason
from polymux.core.jobs.model import JobDevice, JobId, PreemptionLevel
from polymux.policy.jobs.registry import names
from tests.contract.job_driver import EVICT_AFTER_NS, MS, SECOND, JobDriver

GIB = 1 << 30
STEP, BOUNDARY, LAUNCHES, IDLE, STOP = PreemptionLevel
OF_SYSTEM = (STEP, BOUNDARY, IDLE, STOP)
DEVICES = {
    "gpu:0": JobDevice(DeviceId("gpu:0"), 80, 8 * GIB, "fast", (LAUNCHES,), "own", 12e9),
    "gpu:1": JobDevice(DeviceId("gpu:1"), 40, 16 * GIB, "slow", (), "own", 6e9),
    "cpu:0": JobDevice(DeviceId("cpu:0"), 2, 12 * GIB, "cpu", OF_SYSTEM, "host"),
    "cpu:1": JobDevice(DeviceId("cpu:1"), 2, 12 * GIB, "cpu", OF_SYSTEM, "host"),
}
POLICIES = [*names(), "switchflow=boundary", "switchflow=idle", "time_slicing=20"]
devices = st.sampled_from(sorted(DEVICES))
levels = st.sampled_from([(STEP,), (BOUNDARY,), (LAUNCHES,), (BOUNDARY, IDLE, STOP), (IDLE, STOP), (STOP,)])
pins = st.sampled_from([(), (), (), (DeviceId("cpu:0"),), (DeviceId("gpu:0"), DeviceId("gpu:1"))])
reasons = st.sampled_from([YieldReason.STEP, YieldReason.BOUNDARY])


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Jobs, tasks, devices and an operator who do what they like; the `JobDriver` checks every decision."""

    def __init__(self, policy: str) -> None:
        super().__init__()
        self.driver = JobDriver(policy)
        self.driver.add_device(DEVICES["cpu:0"])

    def draw(self, data: st.DataObject, found: list[JobId]) -> JobId:
        return data.draw(st.sampled_from(found))

    @rule(name=devices)
    def add_device(self, name: str) -> None:
        if name not in self.driver.devices:
            self.driver.add_device(DEVICES[name])

    @precondition(lambda self: self.driver.devices)
    @rule(data=st.data())
    def lose_device(self, data: st.DataObject) -> None:
        self.driver.lose_device(data.draw(st.sampled_from(sorted(self.driver.devices))))

    @rule(
        priority=st.integers(0, 2),
        weight=st.sampled_from([1, 100, 300]),
        memory=st.sampled_from([0, GIB, 6 * GIB]),
        peak=st.sampled_from([0, 2 * GIB, 7 * GIB, 13 * GIB]),
        levels=levels,
        pins=pins,
        boundary_ns=st.sampled_from([0, MS // 10, 30 * MS]),
        speeds=st.sampled_from([{}, {"fast": 1.0, "slow": 0.6, "cpu": 0.08}]),
        wants=st.booleans(),
    )
    def open_job(
        self,
        priority: int,
        weight: int,
        memory: int,
        peak: int,
        levels: tuple[PreemptionLevel, ...],
        pins: tuple[DeviceId, ...],
        boundary_ns: int,
        speeds: dict[str, float],
        wants: bool,
    ) -> None:
        job = self.driver.open(
            priority=priority, weight=weight, memory_nbytes=memory, peak_nbytes=peak, levels=levels,
            devices=pins, boundary_ns=boundary_ns, launches_ns=MS, speeds=speeds,
        )  # fmt: skip
        if wants and job in self.driver.jobs:
            self.driver.want(job)

    @precondition(lambda self: self.driver.jobs)
    @rule(data=st.data())
    def want(self, data: st.DataObject) -> None:
        self.driver.want(self.draw(data, sorted(self.driver.jobs)))

    @precondition(lambda self: self.asked())
    @rule(data=st.data(), reason=reasons, after_ns=st.sampled_from([0, MS, 40 * MS]))
    def give_way_as_asked(self, data: st.DataObject, reason: YieldReason, after_ns: int) -> None:
        job = self.draw(data, self.asked())
        self.driver.pass_time(after_ns)
        if job in self.asked():
            self.driver.give_way(job, reason)

    def asked(self) -> list[JobId]:
        return [job for job, book in self.driver.jobs.items() if book.asked is not None]

    @precondition(lambda self: self.driver.jobs)
    @rule(
        data=st.data(), reason=st.sampled_from([YieldReason.STEP, YieldReason.BOUNDARY, YieldReason.NO_WORK])
    )
    def give_way_unasked(self, data: st.DataObject, reason: YieldReason) -> None:
        self.driver.give_way(self.draw(data, sorted(self.driver.jobs)), reason)

    @precondition(lambda self: self.driver.jobs)
    @rule(data=st.data(), run_ns=st.sampled_from([0, 20 * MS, SECOND]), boundary_ns=st.sampled_from([0, MS]))
    def report(self, data: st.DataObject, run_ns: int, boundary_ns: int) -> None:
        self.driver.send(JobReported(self.draw(data, sorted(self.driver.jobs)), run_ns, boundary_ns))

    @precondition(lambda self: self.driver.jobs)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.driver.close(self.draw(data, sorted(self.driver.jobs)))

    @rule(data=st.data())
    def late_news_of_a_job_that_is_over(self, data: st.DataObject) -> None:
        self.driver.send(JobReported(JobId("j0"), 1, 1))

    @precondition(lambda self: self.driver.devices)
    @rule(data=st.data(), priority=st.integers(0, 2), slack_ns=st.sampled_from([None, -MS, MS, 50 * MS]))
    def tasks_wait(self, data: st.DataObject, priority: int, slack_ns: int | None) -> None:
        self.driver.tasks_wait(data.draw(st.sampled_from(sorted(self.driver.devices))), priority, slack_ns)

    @precondition(lambda self: self.driver.leaving)
    @rule(data=st.data(), priority=st.integers(0, 2), weight=st.sampled_from([1, 100, 300]))
    def tasks_leave_as_told(self, data: st.DataObject, priority: int, weight: int) -> None:
        self.driver.tasks_leave(data.draw(st.sampled_from(sorted(self.driver.leaving))), priority, weight)

    @precondition(lambda self: self.driver.tasks)
    @rule(data=st.data())
    def tasks_done(self, data: st.DataObject) -> None:
        self.driver.tasks_done(data.draw(st.sampled_from(sorted(self.driver.tasks))))

    @rule(after_ns=st.sampled_from([0, 1, MS, 70 * MS, 3 * SECOND, 30 * SECOND]))
    def wait(self, after_ns: int) -> None:
        self.driver.pass_time(after_ns)
        self.driver.check_not_stuck()

    def teardown(self) -> None:
        self.driver.settle()
        self.driver.check_replay()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_driver_can_rely_on_every_policy_in_any_order_of_events(policy: str) -> None:
    run_state_machine_as_test(
        lambda: AnyOrderOfEvents(policy),
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def _machine(policy: str, *names_of_devices: str) -> JobDriver:
    driver = JobDriver(policy)
    for name in names_of_devices or ("cpu:0",):
        driver.add_device(DEVICES[name])
    return driver


def _run(driver: JobDriver, duration_ns: int, step_ns: int = 20 * MS, weight: int = 100) -> None:
    """Let all jobs go on run after run, and tasks that never end; both give way when they are asked."""
    end = driver.now + duration_ns
    while driver.now < end:
        driver.pass_time(step_ns)
        for device in list(driver.leaving):
            driver.tasks_leave(device, weight=weight)
        for job in [job for job, book in driver.jobs.items() if book.asked is not None]:
            driver.give_way(job, YieldReason.STEP)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_alone_has_the_device_and_is_left_alone(policy: str) -> None:
    driver = _machine(policy)
    job = driver.open()
    driver.want(job)
    assert driver.jobs[job].device == "cpu:0"
    driver.pass_time(10 * SECOND)
    steps = len(driver.log)
    driver.pass_time(1000 * SECOND)
    assert len(driver.log) == steps, "it wakes up although nobody waits"


@pytest.mark.parametrize("policy", POLICIES)
def test_whose_turn_is_long_is_not_asked_about_again_and_again(policy: str) -> None:
    driver = _machine(policy)
    for weight in (10_000, 1):
        driver.want(driver.open(weight=weight))
    _run(driver, 3 * SECOND)
    steps = len(driver.log)
    driver.pass_time(60 * SECOND)
    assert len(driver.log) - steps < 700


@pytest.mark.parametrize("weights", [(100, 100), (100, 300)])
@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "unmanaged"])
def test_jobs_of_a_priority_get_device_time_by_weight(policy: str, weights: tuple[int, int]) -> None:
    driver = _machine(policy)
    jobs = [driver.open(weight=weight) for weight in weights]
    for job in jobs:
        driver.want(job)
    _run(driver, 60 * SECOND)
    used = [driver.engine.view.jobs[job].used_ns(driver.now) for job in jobs]
    assert used[0] / sum(used) == pytest.approx(weights[0] / sum(weights), abs=0.03)
    assert sum(used) > 59 * SECOND


@pytest.mark.parametrize(("job", "tasks"), [(100, 100), (100, 300), (300, 100), (10_000, 1)])
@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "unmanaged"])
def test_tasks_that_never_pause_leave_jobs_of_their_priority_their_part_by_weight(
    policy: str, job: int, tasks: int
) -> None:
    driver = _machine(policy)
    device = DeviceId("cpu:0")
    name = driver.open(weight=job, levels=OF_SYSTEM, boundary_ns=5 * MS)
    driver.tasks_wait(device, weight=tasks)
    driver.want(name)
    assert driver.tasks[device], "tasks come first to begin with"
    _run(driver, 100 * SECOND, 10 * MS, tasks)
    used_ns = driver.engine.view.jobs[name].used_ns(driver.now)
    assert used_ns / driver.now == pytest.approx(job / (job + tasks), abs=0.05)
    steps = len(driver.log)
    driver.pass_time(SECOND)
    assert len(driver.log) - steps < 50, "it is woken again and again"


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "unmanaged"])
def test_several_jobs_share_with_tasks_that_never_pause(policy: str) -> None:
    driver = _machine(policy)
    names = [driver.open(levels=OF_SYSTEM, boundary_ns=5 * MS) for _ in range(2)]
    for name in names:
        driver.want(name)
    driver.tasks_wait(DeviceId("cpu:0"))
    _run(driver, 100 * SECOND, 10 * MS)
    for name in names:
        used_ns = driver.engine.view.jobs[name].used_ns(driver.now)
        assert used_ns / driver.now == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("policy", POLICIES)
def test_tasks_get_the_device_from_a_job_and_the_job_has_it_back(policy: str) -> None:
    driver = _machine(policy)
    job = driver.open(boundary_ns=5 * MS)
    driver.want(job)
    for _ in range(3):
        driver.tasks_wait(DeviceId("cpu:0"))
        if driver.jobs[job].asked is not None:
            driver.give_way(job, YieldReason.BOUNDARY)
        assert driver.tasks[DeviceId("cpu:0")]
        driver.tasks_done(DeviceId("cpu:0"))
        assert driver.jobs[job].device == "cpu:0"


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "unmanaged"])
def test_a_job_that_never_gives_way_is_stopped_where_that_is_possible(policy: str) -> None:
    driver = _machine(policy)
    job = driver.open(levels=(BOUNDARY, STOP), boundary_ns=MS // 10)
    driver.want(job)
    driver.tasks_wait(DeviceId("cpu:0"))
    driver.pass_time(60 * SECOND)
    assert driver.jobs[job].frozen
    assert driver.tasks[DeviceId("cpu:0")]
    driver.tasks_done(DeviceId("cpu:0"))
    assert driver.jobs[job].device == "cpu:0"


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "unmanaged"])
def test_a_job_that_never_gives_way_is_evicted_where_it_cannot_be_stopped(policy: str) -> None:
    driver = _machine(policy, "gpu:0")
    stubborn, other = driver.open(), driver.open()
    driver.want(stubborn)
    driver.want(other)
    driver.pass_time(60 * SECOND + EVICT_AFTER_NS)
    assert driver.evicted == [stubborn]
    assert driver.jobs[other].device == "gpu:0"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_is_asked_in_vain_keeps_its_device_while_nobody_wants_it(policy: str) -> None:
    driver = _machine(policy, "gpu:0")
    job = driver.open()
    driver.want(job)
    driver.tasks_wait(DeviceId("gpu:0"))
    driver.tasks_done(DeviceId("gpu:0"))
    driver.pass_time(1000 * SECOND)
    assert job in driver.jobs


@pytest.mark.parametrize("device", ["gpu:0", "cpu:0"])
@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "unmanaged"])
def test_two_jobs_that_exceed_the_memory_together_both_get_on(policy: str, device: str) -> None:
    driver = _machine(policy, device)
    jobs = [driver.open(memory_nbytes=GIB, peak_nbytes=7 * GIB) for _ in range(2)]
    for job in jobs:
        driver.want(job)
    _run(driver, 10 * SECOND)
    for job in jobs:
        assert driver.engine.view.jobs[job].used_ns(driver.now) > 4 * SECOND


@pytest.mark.parametrize("policy", POLICIES)
def test_what_cannot_fit_alone_is_refused_with_the_sizes(policy: str) -> None:
    driver = _machine(policy, "gpu:0", "cpu:0")
    job = driver.open(memory_nbytes=GIB, peak_nbytes=13 * GIB)
    assert driver.rejected == [job]
    _, _, decisions = driver.log[-1]
    assert str(13 * GIB) in str(decisions[0])
    assert str(8 * GIB) in str(decisions[0])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_whose_device_vanishes_goes_on_where_it_can(policy: str) -> None:
    driver = _machine(policy, "gpu:0", "gpu:1")
    job = driver.open()
    driver.want(job)
    first = driver.jobs[job].device
    assert first is not None
    driver.lose_device(first)
    assert driver.jobs[job].asked is not None
    driver.give_way(job, YieldReason.BOUNDARY)
    assert driver.jobs[job].device in set(DEVICES) - {first}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_clock_that_goes_back_loses_nothing(policy: str) -> None:
    driver = _machine(policy)
    jobs = [driver.open() for _ in range(2)]
    driver.now = 5 * SECOND
    driver.want(jobs[0])
    driver.now = 3 * SECOND
    driver.want(jobs[1])
    driver.tasks_wait(DeviceId("cpu:0"))
    driver.now = 6 * SECOND
    driver.settle()
    assert not driver.jobs
