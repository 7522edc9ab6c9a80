"""What applications ask for to run jobs: to open a lease, to wait, to say that there is no work, to end it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from polymux.core.errors import DeviceUnavailable, InvalidRequest
from polymux.core.event import MAX_WEIGHT, NORMAL_WEIGHT
from polymux.core.ids import DeviceId
from polymux.core.jobs.model import EVERYWHERE, JobSpec, PreemptionLevel
from polymux.segment import MAX_JOBS
from polymux.server.jobs.driver import JobDriver
from polymux.server.jobs.lease import Held, Lease
from polymux.server.jobs.process import JobProcess, find_process
from polymux.server.parts import Parts
from polymux.server.request import Operation, Request
from polymux.server.session import Session

MAX_NS = 2**62
MAX_NBYTES = 2**60
MAX_PID = 2**31 - 1
LEVELS = {level.name.lower(): level for level in PreemptionLevel}


def job_operations(parts: Parts, held: Callable[[Held], None]) -> dict[str, Operation]:
    """Build the table of operations; `held` is told of every time for which a job held a device."""
    operations = _JobOperations(parts, held)
    return {
        "lease_open": operations.open,
        "lease_wait": operations.wait,
        "lease_idle": operations.idle,
        "lease_report": operations.report,
        "lease_close": operations.close,
    }


def end_jobs(jobs: JobDriver, session: Session) -> None:
    """End the leases of a client that is gone."""
    for lease in list(session.leases.values()):
        jobs.close(lease)
    session.leases.clear()


class _JobOperations:
    def __init__(self, parts: Parts, held: Callable[[Held], None]) -> None:
        self._parts = parts
        self._held = held

    def open(self, request: Request) -> None:
        """Begin a lease, or refuse it with the reason; a process may have to be started."""
        session = request.session
        pid = request.number("pid", 0, MAX_PID, 0)
        outer = self._outer(request, pid)
        spec = self._spec(request, outer)
        gate = next((n for n in range(MAX_JOBS) if n not in session.leases), None)
        if gate is None:
            raise InvalidRequest(f"this session has {MAX_JOBS} leases; close one first")
        session.leases[gate] = Lease(spec, session, gate, None, self._held)  # so that nobody takes the gate

        def work() -> None:
            process = None
            try:
                process = self._process(request, pid, spec, outer)
                opened = self._open(spec, session, gate, process, outer)
            except BaseException:
                session.leases.pop(gate, None)
                if process is not None and outer is None:  # else it is the other lease's
                    self._parts.jobs.custody.release(process)
                raise
            session.leases[gate] = opened
            request.answer(self._described(opened))

        self._parts.later(request, work)

    def wait(self, request: Request) -> None:
        """Note that a job is at a boundary, `between_runs` or in the middle of one, and wants to go on."""
        lease = self._lease(request)
        self._parts.jobs.wait(lease, between_runs=bool(request.number("between_runs", 0, 1, 0)))
        request.answer({} if lease.over is None else {"over": lease.over})

    def idle(self, request: Request) -> None:
        """Note that a job has no work."""
        self._parts.jobs.rest(self._lease(request))
        request.answer()

    def report(self, request: Request) -> None:
        """Note what a job has measured."""
        run_ns, boundary_ns = (request.number(key, 0, MAX_NS, 0) for key in ("run_ns", "boundary_ns"))
        self._parts.jobs.report(self._lease(request), run_ns, boundary_ns)
        request.answer()

    def close(self, request: Request) -> None:
        """End a lease."""
        lease = self._lease(request)
        del request.session.leases[lease.gate]
        self._parts.jobs.close(lease)
        request.answer()

    def _open(
        self, spec: JobSpec, session: Session, gate: int, process: JobProcess | None, outer: Lease | None
    ) -> Lease:
        """Open a lease; where its process cannot be watched over, as one that only gives way by itself."""
        jobs = self._parts.jobs
        if process is not None and outer is None:
            try:
                jobs.custody.take(process)
            except DeviceUnavailable as error:
                if all(level.by_system for level in spec.levels):
                    raise
                print(f"polymux: {spec.name}: {error.reason}", flush=True)
                jobs.custody.release(process)
                process = None
        lease = Lease(_possible(spec, process), session, gate, process, self._held)
        jobs.open(lease, outer)
        return lease

    def _described(self, lease: Lease) -> dict[str, object]:
        devices = [
            {"id": device.id, "cores": self._parts.jobs.cores.get(device.id, ()), "threads": device.units}
            for device in self._parts.jobs.devices
        ]
        return {
            "job": lease.spec.id,
            "gate": lease.gate,
            "levels": ",".join(level.name.lower() for level in lease.spec.levels),
            "devices": json.dumps(devices),
        }

    def _lease(self, request: Request) -> Lease:
        gate = request.number("gate", 0, MAX_JOBS - 1)
        lease = request.session.leases.get(gate)
        if lease is None:
            raise InvalidRequest(f"this session has no lease {gate}; open one first")
        return lease

    def _outer(self, request: Request, pid: int) -> Lease | None:
        """Find the lease that holds the process already, as `polymux run` has it; the new one stands for it."""
        if pid == 0 or pid != request.caller.peer.pid:
            return None
        try:
            lease = self._parts.jobs.around(os.getpgid(pid))
        except ProcessLookupError:
            return None
        same = lease is not None and request.caller.peer.uid in (0, lease.session.peer.uid)
        return lease if same else None

    def _process(self, request: Request, pid: int, spec: JobSpec, outer: Lease | None) -> JobProcess | None:
        """Find what can be held up; nothing where another job would be held up with it."""
        if not any(level.by_system for level in spec.levels):
            return None
        if outer is not None:
            return outer.process
        self._parts.jobs.custody.await_release(pid)
        if self._parts.jobs.has(pid):
            return None
        on_cores = all(device in self._parts.jobs.cores for device in spec.devices)
        return find_process(pid, request.caller.peer, background=spec.priority <= 0 and on_cores)

    def _spec(self, request: Request, outer: Lease | None) -> JobSpec:
        given = outer.spec if outer is not None else None
        devices = request.text("devices", "")
        weight = request.number("weight", 0, MAX_WEIGHT, 0)
        priority = given.priority if given is not None else 0
        return JobSpec(
            self._parts.jobs.new_id(),
            request.text("name", "", limit=128) or request.session.name,
            request.number("priority", -(2**31), 2**31 - 1, priority),
            weight or (given.weight if given is not None else NORMAL_WEIGHT),
            request.number("memory_nbytes", 0, MAX_NBYTES, 0),
            request.number("peak_nbytes", 0, MAX_NBYTES, 0),
            _levels(request.text("levels", "")),
            self._devices(devices) if devices or given is None else given.devices,
            request.number("boundary_ns", 0, MAX_NS, 0),
            speeds={device.kind: float(device.units) for device in self._parts.jobs.devices},
        )

    def _devices(self, text: str) -> tuple[DeviceId, ...]:
        """Read where a job may run; where nothing is said, on the host's cores."""
        known = [device.id for device in self._parts.jobs.devices]
        names = [DeviceId(name.strip()) for name in text.split(",") if name.strip()]
        wrong = next((name for name in names if name not in known), None)
        if wrong is not None:
            raise InvalidRequest(
                f"device {wrong!r} does not exist; the server has {', '.join(known) or 'none'}"
            )
        return tuple(names or [name for name in known if name in self._parts.jobs.cores] or known)


def _levels(text: str) -> tuple[PreemptionLevel, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = next((name for name in names if name not in LEVELS), None)
    if wrong is not None:
        raise InvalidRequest(f"level {wrong!r} is unknown; there are {', '.join(LEVELS)}")
    return tuple(sorted({LEVELS[name] for name in names})) or EVERYWHERE


def _possible(spec: JobSpec, process: JobProcess | None) -> JobSpec:
    """Leave out the levels that need a process which may be stopped, or that leaves the cores to the server's tasks."""
    left_out = set()
    if process is None:
        left_out = {level for level in spec.levels if level.by_system}
    elif not process.may_idle:
        left_out = {PreemptionLevel.IDLE}
    levels: Sequence[PreemptionLevel] = [level for level in spec.levels if level not in left_out]
    if levels:
        return replace(spec, levels=tuple(levels))
    given = ", ".join(level.name.lower() for level in spec.levels)
    if process is not None:
        raise InvalidRequest(
            f"job {spec.name!r} gives way at {given} only, and its process is in another session or control group than"
            " the server: the operating system shares the cores between those first; let it give way at stop"
        )
    raise InvalidRequest(
        f"job {spec.name!r} gives way at {given} only, and the server cannot hold its process up: it is the"
        " server's own, has another job, is of a user whom the server may not act for, or in another process"
        " namespace; let it give way at boundaries"
    )
