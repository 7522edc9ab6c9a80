"""Opens the devices of a runtime and makes one accelerator per stream of each."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.device_spec import DeviceSpec, Share, StreamSpec
from polymux.core.ids import DeviceId, stream_id
from polymux.device.protocol import Device
from polymux.device.registry import DEFAULT
from polymux.device.request import parse_request
from polymux.segment import NativeTable, Worker
from polymux.server.accelerator import Accelerator
from polymux.server.execution import Execution
from polymux.server.health import Health
from polymux.server.isolation import Isolation
from polymux.server.machine import Callbacks, Machine
from polymux.server.measurement import Measurements
from polymux.server.placement import HOST
from polymux.server.residency import Residency

TRACE_CAPACITY = 1 << 17
"""Tasks that a worker remembers until they are written to the timeline."""


def make_machine(devices: Sequence[Device]) -> Machine:
    """Number the memories: 0 is the host's, each device with its own has the next."""
    locations: dict[DeviceId, int] = {}
    for device in devices:
        own = device.spec.memory == "own"
        locations[device.spec.id] = 1 + max(locations.values(), default=0) if own else HOST
    health = {device.spec.id: Health() for device in devices}
    return Machine(tuple(device.spec for device in devices), locations, health)


def add_memories(devices: Sequence[Device], machine: Machine, residency: Residency) -> None:
    """Give every device with memory of its own a stream for copies that other devices' threads need."""
    for device in devices:
        spec = device.spec
        location = machine.locations[spec.id]
        if location != HOST:
            copier = device.open_stream(Share())
            health = machine.health[spec.id]
            residency.add_device(location, spec.id, device, copier, spec.memory_nbytes, health)


def make_accelerators(
    devices: Sequence[Device],
    requests: Sequence[str],
    machine: Machine,
    natives: NativeTable,
    residency: Residency,
    measurements: Measurements,
    callbacks: Callbacks,
    traced: bool,
) -> list[Accelerator]:
    """Open the streams; their threads are not started yet."""
    accelerators = []
    for device in devices:
        spec = device.spec
        location = machine.locations[spec.id]
        for index in range(spec.streams):
            share = spec.share_of(index)
            stream = device.open_stream(share)
            stream_spec = StreamSpec(stream_id(spec.id, index), spec.id, share)
            worker = Worker(
                location,
                natives if spec.api == "cpu" else None,
                trace_capacity=TRACE_CAPACITY if traced else 0,
                threads=spec.units if share.units is None else len(share.units),
            )
            execution = Execution(spec, stream, location, worker, residency, measurements)
            place = (*request_of(spec, requests, devices), share.units)
            accelerators.append(
                Accelerator(
                    stream_spec,
                    spec,
                    stream,
                    worker,
                    execution,
                    Isolation(stream_spec.id, place, worker),
                    measurements,
                    machine,
                    callbacks,
                )
            )
    return accelerators


def request_of(spec: DeviceSpec, requests: Sequence[str], devices: Sequence[Device]) -> tuple[str, int]:
    """Find what was asked for to open a device, so that a worker process can open it, too.

    Returns
    -------
    request : str
    index : int
        Of the device among those that this request opens.
    """
    same_api = [device.spec.id for device in devices if device.spec.api == spec.api]
    at = same_api.index(spec.id)
    asked = [text for text in requests or DEFAULT if parse_request(text).api == spec.api]
    return (asked[at], 0) if len(asked) == len(same_api) else (asked[0], at)


def device_list(devices: Sequence[Device]) -> str:
    """List the devices for people."""
    return ", ".join(device.spec.id for device in devices) or "none"
