"""The engine of jobs: what it believes, checks and refuses, whatever the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import pytest

from polymux.core.decision import WakeAt
from polymux.core.errors import BadDecision, InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.jobs.decision import (
    Evict,
    Grant,
    HoldTasks,
    JobPolicyDecision,
    LetTasksRun,
    RejectJob,
    TakeBack,
)
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
from polymux.core.jobs.model import JobDevice, JobId, JobSpec, PreemptionLevel
from polymux.core.jobs.view import JobView
from polymux.sched.jobs.engine import JobEngine

MS = 1_000_000
GIB = 1 << 30
STEP, BOUNDARY, LAUNCHES, IDLE, STOP = PreemptionLevel
A, B = JobId("a"), JobId("b")
GPU, CPU, CPU1 = DeviceId("gpu:0"), DeviceId("cpu:0"), DeviceId("cpu:1")
SYSTEM = (STEP, BOUNDARY, IDLE, STOP)


class Told:
    """A policy that decides what the test says, once."""

    exclusive: ClassVar[bool] = True

    def __init__(self) -> None:
        self.next: list[JobPolicyDecision] = []

    @classmethod
    def make(cls, option: str) -> Self:
        return cls()

    def decide(self, view: JobView, event: JobEvent, now: int) -> Sequence[JobPolicyDecision]:
        decisions, self.next = self.next, []
        return decisions


class Rig:
    """An engine whose policy does what it is told."""

    def __init__(self, *devices: JobDevice) -> None:
        self.policy = Told()
        self.engine = JobEngine(self.policy, evict_after_ns=100 * MS)
        self.now = 0
        for device in devices or (JobDevice(CPU, levels=SYSTEM, memory="host"),):
            self.send(JobDeviceAdded(device))

    def send(self, event: JobEvent, *decisions: JobPolicyDecision) -> list[Any]:
        self.policy.next = list(decisions)
        return self.engine.handle(event, self.now)

    def open(self, job: JobId, **spec: Any) -> list[Any]:
        found = self.send(JobOpened(JobSpec(job, job, **spec)))
        if not found:
            self.send(JobWants(job))
        return found


def test_a_job_holds_a_device_from_the_grant_until_it_gives_way():
    rig = Rig()
    rig.open(A)
    rig.now = 10 * MS
    assert rig.send(JobTick(), Grant(A, CPU, "why")) == [Grant(A, CPU, "why")]
    state = rig.engine.view.jobs[A]
    assert (state.device, state.waited_ns, state.grants) == (CPU, 10 * MS, 1)
    rig.now = 30 * MS
    assert rig.send(JobTick(), TakeBack(A, BOUNDARY, 5 * MS))[0] == TakeBack(A, BOUNDARY, 5 * MS)
    assert state.device == CPU
    rig.now = 32 * MS
    rig.send(JobYielded(A, YieldReason.BOUNDARY))
    assert (state.device, state.inside, state.wants, state.held_ns) == (None, CPU, True, 22 * MS)
    assert rig.engine.view.devices[CPU].holders == []


def test_a_job_that_is_stopped_counts_as_having_given_way_at_once():
    rig = Rig()
    rig.open(A, levels=(IDLE, STOP))
    rig.send(JobTick(), Grant(A, CPU))
    found = rig.send(TasksWaiting(CPU), TakeBack(A, STOP, MS), LetTasksRun(CPU))
    assert found == [TakeBack(A, STOP, MS), LetTasksRun(CPU)]
    state = rig.engine.view.jobs[A]
    assert (state.device, state.frozen, state.wants) == (None, True, True)
    assert rig.send(JobYielded(A, YieldReason.STOPPED)) == []
    rig.send(TasksDone(CPU), Grant(A, CPU))
    assert (state.device, state.frozen) == (CPU, False)


@pytest.mark.parametrize(
    ("decisions", "problem"),
    [
        ([Grant(JobId("x"), CPU)], "no such job"),
        ([Grant(A, DeviceId("cpu:9"))], "no such job or device"),
        ([Grant(A, CPU), Grant(B, CPU)], "'a' holds it"),
        ([Grant(A, CPU), Grant(A, CPU)], "waits for no device"),
        ([TakeBack(A, STOP, MS)], "holds no device"),
        ([Grant(A, CPU), TakeBack(A, LAUNCHES, MS)], "only at STEP, BOUNDARY"),
        (
            [Grant(A, CPU), TakeBack(A, BOUNDARY, MS), TakeBack(A, STEP, MS)],
            "was asked to give way at BOUNDARY",
        ),
        ([Grant(A, CPU), TakeBack(A, BOUNDARY, 0)], "no time"),
        ([LetTasksRun(CPU)], "no tasks wait"),
        ([HoldTasks(CPU)], "no tasks run there"),
    ],
)
def test_what_must_not_be_carried_out_is_refused_and_what_came_before_is_kept(
    decisions: list[Any], problem: str
):
    rig = Rig()
    rig.open(A)
    rig.open(B)
    with pytest.raises(BadDecision, match=problem) as raised:
        rig.send(JobTick(), *decisions)
    assert [type(one) for one in raised.value.decisions][: len(decisions) - 1] == [
        type(one) for one in decisions[:-1]
    ]


def test_tasks_and_jobs_exclude_each_other():
    rig = Rig()
    rig.open(A)
    rig.send(JobTick(), Grant(A, CPU))
    with pytest.raises(BadDecision, match="'a' holds it"):
        rig.send(TasksWaiting(CPU), LetTasksRun(CPU))
    rig.send(JobYielded(A), LetTasksRun(CPU))
    with pytest.raises(BadDecision, match="tasks run there"):
        rig.send(JobTick(), Grant(A, CPU))


def test_tasks_that_are_held_leave_at_their_boundary_and_what_they_had_is_counted():
    rig = Rig()
    rig.open(A)
    rig.send(TasksWaiting(CPU, 0, None, 300), LetTasksRun(CPU))
    device = rig.engine.view.devices[CPU]
    rig.now = 10 * MS
    rig.send(JobTick(), HoldTasks(CPU, "enough"))
    assert (device.tasks_run, device.tasks_leaving) == (True, True)
    with pytest.raises(BadDecision, match="told to leave before"):
        rig.send(JobTick(), HoldTasks(CPU))
    rig.now = 12 * MS
    assert rig.send(TasksLeft(CPU, 1, None, 200), Grant(A, CPU)) == [Grant(A, CPU)]
    assert (device.tasks_wait, device.tasks_leaving) == (True, False)
    assert (device.tasks_priority, device.tasks_weight) == (1, 200)
    rig.now = 20 * MS
    assert (device.tasks_held_ns(rig.now), device.tasks_used_ns(rig.now)) == (12 * MS, 20 * MS)


def test_tasks_are_held_for_somebody_only():
    rig = Rig()
    rig.send(TasksWaiting(CPU), LetTasksRun(CPU))
    with pytest.raises(BadDecision, match="no job waits for it"):
        rig.send(JobTick(), HoldTasks(CPU))
    rig.open(A, devices=(CPU,))
    rig.send(JobTick(), HoldTasks(CPU))
    rig.send(TasksDone(CPU), Grant(A, CPU))
    assert not rig.engine.view.devices[CPU].tasks_leaving


def test_a_job_that_fits_nowhere_is_rejected_with_the_sizes():
    rig = Rig(JobDevice(GPU, memory_nbytes=8 * GIB))
    (rejected,) = rig.open(A, memory_nbytes=GIB, peak_nbytes=9 * GIB)
    assert isinstance(rejected, RejectJob)
    assert str(9 * GIB) in rejected.reason
    assert str(8 * GIB) in rejected.reason
    assert A not in rig.engine.view.jobs


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"devices": (DeviceId("gpu:7"),)}, "gpu:7"),
        ({"levels": (STOP,)}, "gives way at STOP, gpu:0 knows STEP, BOUNDARY"),
    ],
)
def test_a_job_that_no_device_can_have_is_rejected_with_the_reason(spec: dict[str, Any], problem: str):
    (rejected,) = Rig(JobDevice(GPU)).open(A, **spec)
    assert problem in rejected.reason


def test_a_level_that_the_device_lacks_falls_back_to_what_both_know():
    spec = JobSpec(A, "a", levels=(LAUNCHES,))
    assert spec.levels_on(JobDevice(GPU)) == (STEP, BOUNDARY)
    assert spec.levels_on(JobDevice(GPU, levels=(LAUNCHES,))) == (STEP, BOUNDARY, LAUNCHES)
    assert JobSpec(A, "a", levels=(STEP,)).levels_on(JobDevice(GPU)) == (STEP,)


def test_a_job_that_does_not_give_way_in_time_is_stopped_where_that_is_possible():
    rig = Rig()
    rig.open(A, levels=(BOUNDARY, STOP))
    rig.send(JobTick(), Grant(A, CPU))
    found = rig.send(TasksWaiting(CPU), TakeBack(A, BOUNDARY, 5 * MS))
    assert found[1] == WakeAt(5 * MS, "a job should have given way by then")
    rig.now = 5 * MS
    found = rig.send(JobTick())
    assert isinstance(found[0], TakeBack)
    assert found[0].level is STOP
    assert rig.engine.view.jobs[A].frozen


def test_a_job_that_cannot_be_stopped_is_evicted_when_the_bound_is_over_and_somebody_waits():
    rig = Rig(JobDevice(GPU))
    rig.open(A)
    rig.send(JobTick(), Grant(A, GPU))
    rig.send(JobTick(), TakeBack(A, BOUNDARY, 5 * MS))
    rig.now = 500 * MS
    (wake,) = rig.send(JobTick())
    assert wake.at_ns == 600 * MS, "nobody wants the device"
    rig.send(TasksWaiting(GPU))
    assert A not in rig.engine.view.jobs
    assert rig.send(JobYielded(A)) == [], "what comes late has no effect"


def test_an_evicted_job_is_told_what_it_was_asked():
    rig = Rig(JobDevice(GPU))
    rig.open(A)
    rig.send(JobTick(), Grant(A, GPU))
    rig.send(TasksWaiting(GPU), TakeBack(A, BOUNDARY, 5 * MS))
    rig.now = 105 * MS
    found = rig.send(JobTick())
    assert isinstance(found[0], Evict)
    assert "gpu:0 back at BOUNDARY" in found[0].reason


def test_weights_that_do_not_fit_beside_each_other_are_spilled_least_lately_used_first():
    rig = Rig(JobDevice(GPU, memory_nbytes=10 * GIB))
    third = JobId("c")
    for job in (A, B, third):
        rig.open(job, memory_nbytes=3 * GIB, peak_nbytes=5 * GIB)
    for job in (A, B, third):
        (granted,) = rig.send(JobTick(), Grant(job, GPU))
        assert granted.nbytes == 3 * GIB
        rig.now += MS
        rig.send(JobYielded(job, YieldReason.STEP))
    assert granted.spill == (A,)
    (granted,) = rig.send(JobTick(), Grant(B, GPU))
    assert (granted.nbytes, granted.spill) == (0, ())


def test_activations_move_along_when_a_job_goes_on_elsewhere_in_the_middle_of_a_run():
    rig = Rig(JobDevice(GPU), JobDevice(DeviceId("gpu:1")))
    rig.open(A, memory_nbytes=3 * GIB, peak_nbytes=5 * GIB)
    rig.send(JobTick(), Grant(A, GPU))
    rig.send(JobYielded(A, YieldReason.BOUNDARY))
    (granted,) = rig.send(JobTick(), Grant(A, DeviceId("gpu:1")))
    assert (granted.source, granted.nbytes) == (GPU, 5 * GIB)


def test_the_memory_of_a_stopped_job_is_not_given_to_another():
    host = [JobDevice(name, levels=SYSTEM, memory="host", memory_nbytes=8 * GIB) for name in (CPU, CPU1)]
    rig = Rig(*host)
    for job in (A, B):
        rig.open(job, levels=(STOP,), peak_nbytes=5 * GIB)
    rig.send(JobTick(), Grant(A, CPU))
    rig.send(JobTick(), TakeBack(A, STOP, MS))
    with pytest.raises(BadDecision, match=f"{3 * GIB} can be had there now"):
        rig.send(JobTick(), Grant(B, CPU1))
    rig.send(JobTick(), Grant(A, CPU1))
    assert rig.engine.view.jobs[A].device == CPU1


def test_a_job_on_a_lost_device_is_asked_to_leave_and_its_state_there_is_gone():
    rig = Rig(JobDevice(GPU), JobDevice(DeviceId("gpu:1")))
    rig.open(A, memory_nbytes=GIB)
    rig.send(JobTick(), Grant(A, GPU))
    (found, _) = rig.send(JobDeviceLost(GPU, "unplugged"))
    assert (found.job, found.level) == (A, BOUNDARY)
    assert "unplugged" in found.reason
    rig.send(JobYielded(A))
    state = rig.engine.view.jobs[A]
    assert (state.home, state.inside) == (None, None)


def test_a_device_that_is_back_while_its_last_job_still_leaves_has_that_holder():
    rig = Rig(JobDevice(GPU))
    rig.open(A)
    rig.send(JobTick(), Grant(A, GPU))
    rig.send(JobDeviceLost(GPU))
    rig.send(JobDeviceAdded(JobDevice(GPU)))
    assert rig.engine.view.devices[GPU].holders == [A]
    rig.send(JobClosed(A))
    assert rig.engine.view.devices[GPU].holders == []


def test_reports_smooth_the_time_of_a_run_and_keep_the_longest_between_boundaries():
    rig = Rig()
    rig.open(A, boundary_ns=2 * MS)
    state = rig.engine.view.jobs[A]
    rig.send(JobReported(A, 100 * MS, 8 * MS))
    rig.send(JobReported(A, 200 * MS, 1 * MS))
    assert state.run_ns == 125 * MS
    assert 7 * MS < state.boundary_ns < 8 * MS


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (JobOpened(JobSpec(A, "a")), "open already"),
        (JobDeviceAdded(JobDevice(CPU)), "there already"),
        (TasksWaiting(DeviceId("cpu:7")), "'cpu:7' is unknown; there are: cpu:0"),
        (JobDeviceLost(DeviceId("cpu:7")), "'cpu:7' is unknown"),
    ],
)
def test_an_event_that_cannot_be_is_refused(event: JobEvent, problem: str):
    rig = Rig()
    rig.open(A)
    with pytest.raises(InvalidRequest, match=problem):
        rig.send(event)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"weight": 0}, "weight is 0; give 1 to 10000"),
        ({"levels": ()}, "levels are none"),
        ({"levels": (STOP, IDLE)}, "cheapest first"),
        ({"memory_nbytes": -1}, "memory_nbytes is -1"),
        ({"speeds": {"gpu": 0.0}}, "speed on 'gpu' is 0.0"),
    ],
)
def test_a_job_that_cannot_be_is_refused_by_name_and_value(spec: dict[str, Any], problem: str):
    with pytest.raises(InvalidRequest, match=problem):
        JobSpec(A, "a", **spec)


def test_a_policy_that_raises_or_never_ends_is_told_so():
    class Broken(Told):
        def decide(self, view: JobView, event: JobEvent, now: int) -> Sequence[JobPolicyDecision]:
            if isinstance(event, JobTick):
                raise KeyError("oops")
            return [WakeAt(now + 1)]

    engine = JobEngine(Broken())
    assert engine.handle(JobDeviceAdded(JobDevice(CPU)), 0) == [WakeAt(1)]
    with pytest.raises(BadDecision, match="oops"):
        engine.handle(JobTick(), 1)
