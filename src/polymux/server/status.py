"""What the server tells about itself: devices, streams, applications, queues, kernels; as data for JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from importlib.metadata import version
from time import monotonic_ns
from typing import Any

from polymux.core.device_spec import DeviceSpec, StreamSpec, nested_streams
from polymux.core.kernel_spec import KernelSpec
from polymux.core.snapshot import Snapshot
from polymux.segment import SegmentError
from polymux.server.accounting import account_name
from polymux.server.jobs.status import job_rows
from polymux.server.kernels import Kernel
from polymux.server.memory_usage import Usage
from polymux.server.parts import Parts
from polymux.server.placement import HOST
from polymux.server.session import Session, TaskQueue

Json = dict[str, Any]
_NOTHING = {"failed": 0, "busy_ns": 0, "waiting_ns": 0}
Describe = Callable[[Snapshot], Json]


ASK_TIMEOUT_S = 5.0


def ask(parts: Parts) -> Json:
    """Describe everything that changes; from any thread but the scheduler's, which only makes a snapshot.

    Raises
    ------
    TimeoutError
        When the scheduler does not answer within `ASK_TIMEOUT_S`.
    """
    answer: Future[Snapshot] = Future()
    parts.scheduler.call(answer.set_result)
    return status(parts, answer.result(ASK_TIMEOUT_S))


def status(parts: Parts, snapshot: Snapshot) -> Json:
    """Describe everything that changes."""
    usage = parts.residency.usage()
    sessions = list(parts.sessions.values())
    running = [accelerator.worker.stats()["queues"] for accelerator in parts.accelerators]
    accounts = parts.accounts.table()
    return {
        "server": {
            "version": version("polymux"),
            "pid": os.getpid(),
            "socket": parts.socket,
            "policy": parts.options.policy,
            "job_policy": parts.options.jobs,
            "uptime_ns": monotonic_ns() - parts.started_ns,
            "now_ns": monotonic_ns(),
            "grants": len(parts.grants),
        },
        "devices": devices(parts, snapshot, usage),
        "jobs": job_rows(parts),
        "energy": parts.energy.read(),
        "absent": absent(parts),
        "accounts": [
            {"application": application, "device": device, **asdict(account)}
            for (application, device), account in sorted(accounts.items())
        ],
        "applications": [_application(session, usage) for session in sessions],
        "queues": [
            _queue(queue, snapshot, usage, running)
            for session in sessions
            for queue in list(session.queues.values())
        ],
    }


def gauges(parts: Parts) -> dict[str, dict[str, int]]:
    """Count what each device has now: memory in use, where it has its own, and tasks that have not ended."""
    usage = parts.residency.usage()
    found: dict[str, dict[str, int]] = {}
    for accelerator in parts.accelerators:
        device = accelerator.device.id
        values = found.setdefault(device, {"waiting tasks": 0})
        values["waiting tasks"] += sum(queue.pending() for queue in accelerator.queues())
        location = parts.machine.locations[device]
        if location != HOST:
            values["memory used"] = usage[location].used_nbytes
    return found


def devices(parts: Parts, snapshot: Snapshot, usage: dict[int, Usage]) -> list[Json]:
    """Describe the devices that were found and their streams."""
    return [_device(parts, device.spec, device.counters(), snapshot, usage) for device in parts.devices]


def absent(parts: Parts) -> list[Json]:
    """Say what is not here, and why."""
    missing = (*parts.absent, *parts.energy.absent)
    return [{"name": item.name, "reason": item.reason} for item in missing]


def kernels(parts: Parts, session: Session | None) -> list[Json]:
    """Describe the kernels that a session, or anybody, can submit."""
    own = session.kernels.own() if session is not None else []
    return [_kernel(kernel, parts, "this session") for kernel in own] + [
        _kernel(kernel, parts, kernel.origin) for kernel in parts.directory.all()
    ]


def _device(
    parts: Parts, spec: DeviceSpec, counters: dict[str, int], snapshot: Snapshot, usage: dict[int, Usage]
) -> Json:
    location = parts.machine.locations[spec.id]
    view = snapshot.devices.get(spec.id)
    copied_in, copied_out = parts.measurements.copied_nbytes(location)
    return {
        "id": spec.id,
        "api": spec.api,
        "name": spec.name,
        "memory": spec.memory,
        "memory_nbytes": spec.memory_nbytes,
        "used_nbytes": usage[location].used_nbytes if location != HOST else 0,
        "kept_nbytes": usage[location].kept_nbytes if location != HOST else 0,
        "units": spec.units,
        "apis": list(spec.apis),
        "partitionable": spec.partitionable,
        "details": spec.details,
        "lost": None if view is None else view.lost,
        "counters": counters,
        "copied_in_nbytes": copied_in,
        "copied_out_nbytes": copied_out,
        "streams": _streams(parts, spec),
        "task_waits": parts.jobs.task_waits()[spec.id],
        "jobs_memory": dict(zip(("used_nbytes", "most_nbytes"), parts.jobs.memory()[spec.id], strict=True)),
    }


def _streams(parts: Parts, device: DeviceSpec) -> list[Json]:
    own = [accelerator for accelerator in parts.accelerators if accelerator.device.id == device.id]
    nested = nested_streams([accelerator.spec for accelerator in own], device.units)
    return [
        _stream(accelerator.spec, device, accelerator.spec.id in nested, accelerator.worker.stats())
        for accelerator in own
    ]


def _stream(stream: StreamSpec, device: DeviceSpec, nested: bool, stats: Json) -> Json:
    units = range(device.units) if stream.share.units is None else stream.share.units
    return {
        "id": stream.id,
        "units": list(units),
        "cores": [device.cores[unit] for unit in units] if device.cores else [],
        "pinned_only": nested,
        "tasks": stats["tasks"],
        "native_tasks": stats["native_tasks"],
        "busy_ns": stats["busy_ns"],
        "waiting_ns": stats["waiting_ns"],
        "queues": stats["queues"],
    }


def _application(session: Session, usage: dict[int, Usage]) -> Json:
    return {
        "session": session.id,
        "name": session.name,
        "account": account_name(session.name),
        "pid": session.peer.pid,
        "uid": session.peer.uid,
        "segment_nbytes": session.segment.nbytes,
        "device_nbytes": sum(memory.by_session.get(session.id, 0) for memory in usage.values()),
        "queues": len(session.queues),
        "kernels": len(session.kernels.own()),
        "grants": len(session.tokens),
        "claimed": sorted(session.claimed),
        "worker_pids": [process.pid for process in list(session.workers.values()) if process.pid is not None],
    }


def _queue(queue: TaskQueue, snapshot: Snapshot, usage: dict[int, Usage], running: list[Json]) -> Json:
    now = next((queues[queue.id] for queues in running if queue.id in queues), _NOTHING)
    view = snapshot.queues.get(queue.id)
    try:
        counters = queue.session.segment.counters(queue.index)
    except SegmentError:
        counters = {"submitted": 0, "taken": 0, "completed": 0, "capacity": 0}
    return {
        "id": queue.id,
        "name": queue.name,
        "session": queue.session.id,
        "application": queue.session.name,
        "priority": queue.priority,
        "pinned": queue.pinned_stream or queue.pinned,
        "state": None if view is None else view.state.value,
        "device": None if view is None else view.device,
        "stream": None if view is None else view.stream,
        "home": None if view is None else view.home,
        "submitted": counters["submitted"],
        "completed": counters["completed"],
        "pending": counters["submitted"] - counters["completed"],
        "capacity": counters["capacity"],
        "failed": queue.failed + now["failed"],
        "busy_ns": queue.busy_ns + now["busy_ns"],
        "waiting_ns": queue.waiting_ns + now["waiting_ns"],
        "migrations": queue.migrations,
        "device_nbytes": sum(memory.by_queue.get(queue.id, 0) for memory in usage.values()),
    }


def _kernel(kernel: Kernel, parts: Parts, origin: str) -> Json:
    return {
        "name": kernel.spec.name,
        "id": kernel.id,
        "signature": signature(kernel.spec),
        "apis": sorted(kernel.apis),
        "devices": list(parts.machine.having(kernel)),
        "isolated": sorted(kernel.isolated),
        "origin": origin,
        "doc": kernel.spec.doc,
    }


def signature(spec: KernelSpec) -> str:
    """Write what a kernel takes on one line."""
    if spec.variadic:
        return "(any buffers)"
    inputs, outputs = (", ".join(param.name for param in params) for params in (spec.inputs, spec.outputs))
    scalars = ", ".join(
        f"{param.name}: {param.dtype.name_short}" + ("" if param.default is None else f" = {param.default}")
        for param in spec.scalars
    )
    return f"({inputs}) -> ({outputs})" + (f"; {scalars}" if scalars else "")
