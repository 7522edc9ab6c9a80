"""A driver of the engine of jobs that checks every decision, and remembers what it told the engine."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.decision import WakeAt
from polymux.core.ids import DeviceId
from polymux.core.jobs.decision import Evict, Grant, HoldTasks, JobDecision, LetTasksRun, RejectJob, TakeBack
from polymux.core.jobs.event import (
    JobClosed,
    JobDeviceAdded,
    JobDeviceLost,
    JobEvent,
    JobOpened,
    JobTick,
    JobWants,
    JobYielded,
    TasksDone,
    TasksLeft,
    TasksWaiting,
    YieldReason,
)
from polymux.core.jobs.model import JobDevice, JobId, JobSpec
from polymux.core.jobs.view import unusable
from polymux.policy.jobs.registry import load
from polymux.sched.jobs.engine import JobEngine

MS = 1_000_000
SECOND = 1000 * MS
MOST_TICKS = 1000
EVICT_AFTER_NS = 2 * SECOND


@dataclass(slots=True)
class Book:
    """What the driver knows of a job."""

    spec: JobSpec
    wants: bool = False
    device: DeviceId | None = None
    asked: TakeBack | None = None
    asked_ns: int = 0
    inside: DeviceId | None = None
    frozen: bool = False
    grants: int = 0


class JobDriver:
    """Sends events, carries decisions out in its books, and asserts what any driver relies on."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        loaded = load(policy)
        self.exclusive = loaded.exclusive
        self.engine = JobEngine(loaded, EVICT_AFTER_NS)
        self.now = 0
        self.log: list[tuple[JobEvent, int, list[JobDecision]]] = []
        self.jobs: dict[JobId, Book] = {}
        self.devices: dict[DeviceId, JobDevice] = {}
        self.tasks: dict[DeviceId, bool] = {}
        self.leaving: dict[DeviceId, None] = {}
        self.evicted: list[JobId] = []
        self.rejected: list[JobId] = []
        self.wakes: set[int] = set()
        self._count = 0

    # ---- what happens ----

    def add_device(self, device: JobDevice) -> None:
        self.devices[device.id] = device
        self.send(JobDeviceAdded(device))

    def lose_device(self, device: DeviceId) -> None:
        gone = self.devices.pop(device)
        self.tasks.pop(device, None)
        self.leaving.pop(device, None)
        for book in self.jobs.values():
            if book.inside == device and gone.memory == "own":
                book.inside, book.frozen = None, False
        self.send(JobDeviceLost(device, "unplugged"))

    def open(self, **spec: object) -> JobId:
        self._count += 1
        job = JobId(f"j{self._count}")
        self.jobs[job] = Book(JobSpec(job, f"job {self._count}", **spec))  # type: ignore[arg-type]
        self.send(JobOpened(self.jobs[job].spec))
        return job

    def want(self, job: JobId) -> None:
        self.jobs[job].wants = True
        self.send(JobWants(job))

    def give_way(self, job: JobId, reason: YieldReason) -> None:
        book = self.jobs[job]
        if book.device is not None:
            book.inside = book.device if book.device in self.devices else None
        book.device, book.asked, book.frozen = None, None, False
        if reason is not YieldReason.BOUNDARY:
            book.inside = None
        book.wants = reason is not YieldReason.NO_WORK
        self.send(JobYielded(job, reason))

    def close(self, job: JobId) -> None:
        del self.jobs[job]
        self.send(JobClosed(job))

    def tasks_wait(
        self, device: DeviceId, priority: int = 0, slack_ns: int | None = None, weight: int = 100
    ) -> None:
        self.tasks.setdefault(device, False)
        self.send(TasksWaiting(device, priority, None if slack_ns is None else self.now + slack_ns, weight))

    def tasks_leave(
        self, device: DeviceId, priority: int = 0, weight: int = 100, slack_ns: int | None = None
    ) -> None:
        """As they were told, and they want the device again."""
        del self.leaving[device]
        self.tasks[device] = False
        self.send(TasksLeft(device, priority, None if slack_ns is None else self.now + slack_ns, weight))

    def tasks_done(self, device: DeviceId) -> None:
        del self.tasks[device]
        self.leaving.pop(device, None)
        self.send(TasksDone(device))

    def pass_time(self, duration_ns: int) -> None:
        """Let time pass, and wake the engine whenever it asked for it."""
        until = self.now + duration_ns
        ticks = 0
        while self.wakes and min(self.wakes) <= until:
            self.now = max(self.now, min(self.wakes))
            self.wakes = {at for at in self.wakes if at > self.now}
            self.send(JobTick())
            ticks += 1
            assert ticks < MOST_TICKS, f"it was woken {ticks} times in {duration_ns / MS:.0f} ms"
        self.now = until

    # ---- what is relied on ----

    def send(self, event: JobEvent) -> None:
        decisions = self.engine.handle(event, self.now)
        self.log.append((event, self.now, decisions))
        for decision in decisions:
            self._carry_out(decision)
            self._check_exclusive()
        self._check_books()

    def _carry_out(self, decision: JobDecision) -> None:
        match decision:
            case Grant():
                self._grant(decision)
            case TakeBack():
                self._take_back(decision)
            case Evict():
                book = self.jobs.pop(decision.job)
                assert book.asked is not None, "it was never asked to give way"
                assert self.now >= book.asked_ns + book.asked.within_ns + EVICT_AFTER_NS
                self.evicted.append(decision.job)
            case RejectJob():
                spec = self.jobs.pop(decision.job).spec
                assert all(unusable(spec, device) for device in self.devices.values())
                self.rejected.append(decision.job)
            case LetTasksRun():
                assert self.tasks[decision.device] is False
                self.tasks[decision.device] = True
            case HoldTasks():
                assert self.tasks[decision.device], "no tasks run there"
                assert decision.device not in self.leaving, "they were told before"
                assert any(book.wants and book.device is None for book in self.jobs.values()), "for nobody"
                self.leaving[decision.device] = None
            case WakeAt():
                self.wakes.add(max(decision.at_ns, self.now + 1))

    def _grant(self, decision: Grant) -> None:
        book = self.jobs[decision.job]
        device = self.devices[decision.device]
        assert book.wants
        assert book.device is None, "it holds a device already"
        assert unusable(book.spec, device) is None
        if book.frozen and book.inside is not None and book.inside in self.devices:
            assert book.inside == device.id or device.memory == self.devices[book.inside].memory == "host"
        for name in decision.spill:
            other = self.jobs[name]
            assert other.device is None
            assert not other.frozen
            assert device.memory == "own"
            if other.inside == device.id:
                other.inside = None
        book.device, book.inside, book.frozen = device.id, None, False
        book.grants += 1

    def _take_back(self, decision: TakeBack) -> None:
        book = self.jobs[decision.job]
        assert book.device is not None, "it holds nothing"
        if book.device in self.devices:
            assert decision.level in book.spec.levels_on(self.devices[book.device])
        assert book.asked is None or decision.level > book.asked.level
        if decision.level.by_system:
            book.inside = book.device if book.device in self.devices else None
            book.frozen = book.inside is not None
            book.device, book.asked = None, None
        else:
            book.asked, book.asked_ns = decision, self.now

    def holders(self, device: DeviceId) -> list[JobId]:
        return [job for job, book in self.jobs.items() if book.device == device]

    def _check_exclusive(self) -> None:
        if not self.exclusive:
            return
        for name, device in self.devices.items():
            assert len(self.holders(name)) + self.tasks.get(name, False) <= 1, "two have the device"
            if device.memory_nbytes:
                assert self.activations(device) <= device.memory_nbytes, "more than its memory"

    def activations(self, device: JobDevice) -> int:
        """Bytes of what runs in a device's memory, or was stopped or left there and cannot be spilled."""
        host = device.memory == "host"
        total = 0
        for book in self.jobs.values():
            at = book.device or book.inside
            if at is None or at not in self.devices:
                continue
            there = at == device.id or (host and self.devices[at].memory == "host")
            if there and (book.device is not None or book.frozen or host):
                total += book.spec.needed_nbytes
        return total

    def _check_books(self) -> None:
        view = self.engine.view
        assert list(view.jobs) == list(self.jobs), "a job was lost"
        for job, book in self.jobs.items():
            assert (view.jobs[job].wants, view.jobs[job].device) == (book.wants, book.device)

    def could_start(self) -> list[JobId]:
        """Jobs that wait while a device that they could have is free."""
        view = self.engine.view
        return [
            job
            for job, state in view.jobs.items()
            if state.wants
            and state.device is None
            and any(
                not device.holders and not device.tasks and view.has_room(state, device)
                for device in view.usable(state)
            )
        ]

    def check_not_stuck(self) -> None:
        """Whatever may start and does not: something that is bound to happen has the policy asked again."""
        asked = any(book.asked is not None for book in self.jobs.values())
        if not (asked or self.wakes or any(self.tasks.values())):
            assert not self.could_start(), "something could start, and the policy sleeps"
            idle = [name for name, runs in self.tasks.items() if not runs and not self.holders(name)]
            assert not idle, "tasks could run, and the policy sleeps"

    def settle(self, steps: int = 2000) -> None:
        """Do what is asked for, end tasks and close jobs that had a device, until no job waits that ever could run."""
        for _ in range(steps):
            self.check_not_stuck()
            asked = next((job for job, book in self.jobs.items() if book.asked is not None), None)
            runs = next((name for name, running in self.tasks.items() if running), None)
            holder = next((job for job, book in self.jobs.items() if book.device is not None), None)
            if asked is not None:
                self.give_way(asked, YieldReason.STEP)
            elif runs is not None:
                self.tasks_done(runs)
            elif holder is not None:
                self.pass_time(50 * MS)
                if holder in self.jobs:
                    self.close(holder)
            elif self.could_start() and self.wakes:
                self.pass_time(min(self.wakes) - self.now)
            else:
                break
        view = self.engine.view
        left = [job for job, state in view.jobs.items() if state.wants and any(view.usable(state))]
        assert not left, f"{left} still wait after everything else is over"
        assert not self.tasks, "tasks still wait"

    def check_replay(self) -> None:
        """The same events at the same times lead a fresh policy to the same decisions."""
        again = JobEngine(load(self.policy), EVICT_AFTER_NS)
        for event, now, decisions in self.log:
            assert again.handle(event, now) == decisions
