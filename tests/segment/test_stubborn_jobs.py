"""Jobs that do not give way, in real time with short bounds."""

from __future__ import annotations

from polymux.core.jobs.model import EVERYWHERE, PreemptionLevel
from polymux.policy.jobs import registry
from polymux.sched.jobs.engine import JobEngine
from polymux.segment import GATE_OVER
from polymux.server.jobs.driver import JobDriver
from tests.segment.server_process import until
from tests.unit.server.jobs.rig import Rig, gate, process_of

MS = 1_000_000


def rig_that_evicts_after(ms: int) -> Rig:
    rig = Rig()
    engine = JobEngine(registry.load("switchflow"), evict_after_ns=ms * MS)
    streams, cores = rig.streams, rig.driver.cores
    rig.driver = JobDriver(engine, rig.driver.devices, cores, custody=rig.driver.custody)
    for device, stream in streams.items():
        rig.driver.add_stream(device, rig.stream_of(device), stream)
    return rig


def test_a_job_that_never_reaches_a_boundary_loses_its_lease_and_the_tasks_run() -> None:
    rig = rig_that_evicts_after(20)
    lease = rig.open(EVERYWHERE, boundary_ns=MS)
    rig.driver.wait(lease, between_runs=True)
    rig.told()
    rig.tasks()
    until(lambda: lease.over is not None)
    assert "did not" in (lease.over or "")
    assert gate(lease) == GATE_OVER
    assert rig.told() == ["unguard"], "without a job tasks ask nobody"
    rig.driver.end()


def test_a_job_that_never_reaches_a_boundary_is_stopped_where_that_is_possible() -> None:
    rig = rig_that_evicts_after(20)
    levels = (*EVERYWHERE, PreemptionLevel.STOP)
    lease, other = rig.open(levels, boundary_ns=MS), rig.open(EVERYWHERE, priority=1)
    rig.driver.wait(lease, between_runs=True)
    rig.driver.wait(other, between_runs=True)
    until(lambda: other.holds)
    assert lease.over is None
    assert process_of(lease).state == "stopped"
    rig.driver.rest(other)
    assert process_of(lease).state == "runs"
    rig.driver.end()
