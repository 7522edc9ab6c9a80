"""The server's devices as jobs see them."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.ids import DeviceId
from polymux.core.jobs.model import EVERYWHERE, JobDevice, PreemptionLevel
from polymux.device.cpu import CpuDevice
from polymux.device.protocol import Device
from polymux.server.jobs.process import can_idle

BY_SYSTEM = (PreemptionLevel.IDLE, PreemptionLevel.STOP)


def job_devices(devices: Sequence[Device]) -> list[JobDevice]:
    """Describe devices for jobs.

    Notes
    -----
    A job computes in its own process: on the host's cores it works in host memory, and the operating system can hold it
    up there. On other devices only the job itself can give way.
    """
    system = BY_SYSTEM if can_idle() else BY_SYSTEM[1:]
    return [_job_device(device, system) for device in devices]


def job_cores(devices: Sequence[Device]) -> dict[DeviceId, tuple[int, ...]]:
    """Cores of the host, by their numbers, of the devices that are some."""
    return {device.spec.id: device.cores for device in devices if isinstance(device, CpuDevice)}


def _job_device(device: Device, system: tuple[PreemptionLevel, ...]) -> JobDevice:
    spec = device.spec
    on_host = isinstance(device, CpuDevice)
    return JobDevice(
        spec.id,
        spec.units,
        spec.memory_nbytes,
        kind=f"{spec.api}/{spec.units}",
        levels=(*EVERYWHERE, PreemptionLevel.LAUNCHES, *(system if on_host else ())),
        memory="host" if on_host or spec.memory == "host" else "own",
    )
