"""A driver of jobs with streams that note what they are told, and jobs whose processes only note it, too."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from polymux.core.ids import DeviceId, StreamId
from polymux.core.jobs.model import EVERYWHERE, JobDevice, JobSpec, PreemptionLevel
from polymux.policy.jobs import registry
from polymux.sched.jobs.engine import JobEngine
from polymux.segment import GATE_BITS
from polymux.server.jobs.custody import Custody
from polymux.server.jobs.driver import JobDriver
from polymux.server.jobs.guard import Guard
from polymux.server.jobs.lease import Held, Lease
from polymux.server.jobs.process import JobProcess
from polymux.server.session import Session

ALL = (*EVERYWHERE, PreemptionLevel.IDLE, PreemptionLevel.STOP)


class Stream:
    """Notes what a worker is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def guard(self, on: bool) -> None:
        self.told.append("guard" if on else "unguard")

    def let_in(self) -> None:
        self.told.append("let in")

    def leave(self) -> None:
        self.told.append("leave")


class Process:
    """Notes what would be done to a process."""

    def __init__(self) -> None:
        self.pid = 1
        self.group = False
        self.state = "runs"
        self.cores: tuple[int, ...] = ()
        self.closed = False
        self.in_background = ""
        self.may_idle = False

    def enter_background(self, threads: bool, about_to: object = None) -> None:
        self.in_background = "threads"

    def leave_background(self, patience_s: float = 0.0) -> bool:
        self.in_background = ""
        return True

    def stop(self) -> None:
        self.state = "stopped"

    def make_idle(self) -> None:
        self.state = "idle"

    def go_on(self) -> None:
        self.state = "runs"

    def move(self, cores: Sequence[int]) -> None:
        self.cores = tuple(cores)

    def close(self) -> None:
        self.go_on()
        self.closed = True


class NoGuard(Guard):
    """Needs no program."""

    def watch(self, job: JobProcess) -> None:
        pass


class Rig:
    """Devices cpu:0 and cpu:1 with one stream each, unless told otherwise."""

    def __init__(self, policy: str = "switchflow", devices: int = 1, memory_nbytes: int = 0) -> None:
        specs = [
            JobDevice(DeviceId(f"cpu:{n}"), 2, memory_nbytes, "cpu", (*ALL,), "host") for n in range(devices)
        ]
        cores = {spec.id: (2 * n, 2 * n + 1) for n, spec in enumerate(specs)}
        custody = Custody(NoGuard())
        self.driver = JobDriver(JobEngine(registry.load(policy)), specs, cores, custody=custody)
        self.streams = {spec.id: Stream() for spec in specs}
        for device, stream in self.streams.items():
            self.driver.add_stream(device, self.stream_of(device), stream)
        self.held: list[Held] = []
        self.sessions = 0

    @staticmethod
    def stream_of(device: str) -> StreamId:
        return StreamId(f"{device}/0")

    def open(
        self,
        levels: tuple[PreemptionLevel, ...] = ALL,
        *,
        process: Process | None = None,
        outer: Lease | None = None,
        **options: Any,
    ) -> Lease:
        """Open a lease; the tasks that are presumed to run leave, as there are none."""
        self.sessions += 1
        gates: dict[int, tuple[int, int]] = {}
        session = SimpleNamespace(
            id=self.sessions,
            name=f"application {self.sessions}",
            ended=False,
            gates=gates,
            segment=SimpleNamespace(set_gate=lambda gate, word, device: gates.update({gate: (word, device)})),
        )
        spec = JobSpec(self.driver.new_id(), options.pop("name", "job"), levels=levels, **options)
        if process is None and any(level.by_system for level in levels):
            process = Process()
        lease = Lease(spec, cast(Session, session), 0, cast("JobProcess | None", process), self.held.append)
        if lease.process is not None and outer is None:
            self.driver.custody.take(lease.process)
        self.driver.open(lease, outer)
        for device in self.streams:
            self.driver.drained(device, self.stream_of(device))
        return lease

    def tasks(self, priority: int = 0, device: str = "cpu:0") -> None:
        """Have tasks want a device."""
        self.driver.wanted(DeviceId(device), self.stream_of(device), priority, None)

    def tasks_end(self, device: str = "cpu:0") -> None:
        self.driver.drained(DeviceId(device), self.stream_of(device))

    def told(self, device: str = "cpu:0") -> list[str]:
        """What a stream was told since the last time."""
        stream = self.streams[DeviceId(device)]
        told, stream.told = stream.told, []
        return told


def gate(lease: Lease) -> int:
    """What a job's gate says, without its serial number."""
    word: int = cast(Any, lease.session).gates[0][0]
    return word & ((1 << GATE_BITS) - 1)


def device_number(lease: Lease) -> int:
    number: int = cast(Any, lease.session).gates[0][1]
    return number


def process_of(lease: Lease) -> Process:
    assert lease.process is not None
    return cast(Process, lease.process)
