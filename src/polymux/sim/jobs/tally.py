"""Counts what happens in a simulation of jobs."""

from __future__ import annotations

from collections.abc import Mapping

from polymux.core.ids import DeviceId
from polymux.core.jobs.model import JobDevice, JobId
from polymux.core.jobs.view import JobView, unusable
from polymux.sim.jobs.outcome import JobOutcome, JobsOutcome, RequestsOutcome
from polymux.sim.jobs.requests import Task
from polymux.sim.jobs.scenario import JobLoad, JobsScenario, RequestLoad
from polymux.sim.jobs.work import Work


class Tally:
    """Latencies, waits, memory and progress, from the end of the warm-up on."""

    def __init__(self, scenario: JobsScenario, devices: Mapping[DeviceId, JobDevice]) -> None:
        self._scenario = scenario
        self._devices = devices
        self._requests = {load.name: RequestsOutcome() for load in scenario.requests}
        self._open: dict[int, Task] = {}
        self._waits_ns: list[int] = []
        self._models = {
            device.id: sum(
                load.memory_nbytes
                for load in scenario.requests
                if isinstance(load, RequestLoad) and load.device == device.id
            )
            for device in scenario.devices
        }
        self._peak = dict(self._models)
        self._runs_before: dict[JobId, float] = {}
        self._tasks_before: dict[DeviceId, int] = {}

    def begin(self, works: Mapping[JobId, Work], view: JobView, now: int) -> None:
        """Note what was done in the warm-up."""
        self._runs_before = {name: work.runs(now) for name, work in works.items()}
        self._tasks_before = {name: device.tasks_used_ns(now) for name, device in view.devices.items()}

    def arrive(self, task: Task) -> None:
        """Note that a task is there."""
        if task.arrival_ns >= self._scenario.warmup_ns:
            self._open[id(task)] = task

    def answer(self, task: Task, now: int) -> None:
        """Note that a task was answered, or that a span of a trace began."""
        if self._open.pop(id(task), None) is not None:
            self._requests[task.load].latencies_ns.append(now - task.arrival_ns)

    def wait(self, since_ns: int, now: int) -> None:
        """Note how long tasks waited for a device."""
        if since_ns >= self._scenario.warmup_ns:
            self._waits_ns.append(now - since_ns)

    def look(self, view: JobView) -> None:
        """Note how much memory is used."""
        for name, peak in self._peak.items():
            used = self._models[name] + view.resident_nbytes(name)
            if used > peak:
                self._peak[name] = used

    def finish(self, works: Mapping[JobId, Work], view: JobView, now: int) -> JobsOutcome:
        """Say what came of it."""
        for task in self._open.values():
            self._requests[task.load].unanswered_ns.append(now - task.arrival_ns)
        tasks = {
            name: device.tasks_used_ns(now) - self._tasks_before.get(name, 0)
            for name, device in view.devices.items()
        }
        return JobsOutcome(
            jobs={name: self._job(work, now) for name, work in works.items()},
            requests=self._requests,
            waits_ns=self._waits_ns,
            peak_nbytes=self._peak,
            tasks_ns=tasks,
            seconds=(now - self._scenario.warmup_ns) / 1e9,
        )

    def _job(self, work: Work, now: int) -> JobOutcome:
        load = work.load
        runs = work.runs(now) - self._runs_before.get(load.spec.id, 0.0)
        begin = max(load.open_ns, self._scenario.warmup_ns)
        length = (work.end_ns if work.end_ns is not None else now) - begin
        alone_ns = self._alone_run_ns(load)
        fraction = runs * alone_ns / length if length > 0 and alone_ns else 0.0
        return JobOutcome(runs, fraction, work.taken_back, work.moves, work.done_ns, work.failure)

    def _alone_run_ns(self, load: JobLoad) -> int:
        """Time of a run on the device where it is shortest; 0: it can run nowhere."""
        devices = [device for device in self._devices.values() if unusable(load.spec, device) is None]
        return min((load.program.scaled(load.spec.speed(device)).run_ns for device in devices), default=0)
