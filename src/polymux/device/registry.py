"""The device APIs by name, and opening what an operator asks for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import entry_points

from polymux.core.device_spec import AbsentDevice
from polymux.core.errors import ConfigError, DeviceUnavailable
from polymux.device.absent import absent_kinds
from polymux.device.protocol import Device, NativeCaller
from polymux.device.request import DeviceRequest, parse_request
from polymux.device.surroundings import DeviceFactory, Surroundings

ENTRY_POINTS = "polymux.devices"
"""Group of entry points of other packages: name of the API, and a `DeviceFactory`."""

DEFAULT = ("cpu", "opencl")
"""What is opened when nothing is asked for: the host's cores, and every OpenCL device."""

_FACTORIES = {
    "cpu": "polymux.device.cpu:open_devices",
    "cuda": "polymux.device.cuda:open_devices",
    "onnxruntime": "polymux.device.onnx_device:open_devices",
    "opencl": "polymux.device.opencl_discovery:open_devices",
    "simulated": "polymux.device.simulated:open_devices",
}


def discover(
    requests: Sequence[str] = (), *, native_caller: NativeCaller | None = None, source: str = "--device"
) -> tuple[list[Device], list[AbsentDevice]]:
    """Open devices.

    Parameters
    ----------
    requests : sequence of str
        Device strings (`polymux.device.request`); empty: `DEFAULT`.
    native_caller : NativeCaller, optional
        Runs native kernels on the host's cores.
    source : str
        Where the strings were written, for errors.

    Returns
    -------
    list of Device
        In the order of the requests; each API numbers its own from 0. The receiver closes them.
    list of AbsentDevice
        What is not here, and why.

    Raises
    ------
    ConfigError
        If a string cannot be followed. Nothing stays open.
    DeviceUnavailable
        If a device that was asked for by name is not here. Nothing stays open.
    """
    parsed = [parse_request(text, source) for text in requests or DEFAULT]
    _check_repeated(parsed)
    devices: list[Device] = []
    absent: list[AbsentDevice] = []
    try:
        for request in parsed:
            index = sum(device.spec.api == request.api for device in devices)
            try:
                found = factory(request)(request, Surroundings(index, native_caller))
            except DeviceUnavailable as error:
                if requests:
                    raise DeviceUnavailable(f"{request.text}: {error.reason}") from error
                absent.append(AbsentDevice(request.api, error.reason))
            else:
                devices += found.devices
                absent += found.absent
    except BaseException:
        close_all(devices)
        raise
    opened = {device.spec.api for device in devices}
    return devices, absent + [kind for kind in absent_kinds() if kind.name not in opened]


def known_apis() -> list[str]:
    """Names of all device APIs: those of this package, and those of other packages."""
    return sorted({*_FACTORIES, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def factory(request: DeviceRequest) -> DeviceFactory:
    """Find what opens devices of the request's API.

    Raises
    ------
    ConfigError
        If there is no such API.
    DeviceUnavailable
        If the package that brings it cannot be imported.
    """
    target = _FACTORIES.get(request.api)
    if target is not None:
        module, _, name = target.partition(":")
        found: DeviceFactory = getattr(importlib.import_module(module), name)
        return found
    points = entry_points(group=ENTRY_POINTS, name=request.api)
    for point in points:
        try:
            found = point.load()
        except Exception as error:
            raise DeviceUnavailable(
                f"the package that brings {request.api} cannot be loaded: {error}"
            ) from error
        return found
    known = ", ".join(known_apis())
    raise request.error(request.api, f"there is no such kind of device; known are {known}")


def close_all(devices: Sequence[Device]) -> None:
    """Close devices, the last opened first."""
    for device in reversed(devices):
        device.close()


def _check_repeated(requests: Sequence[DeviceRequest]) -> None:
    seen: set[tuple[str, str, str]] = set()
    for request in requests:
        key = (request.api, request.target, request.file)
        if key in seen and not request.file:
            raise ConfigError(
                request.source,
                request.text,
                request.text,
                "is asked for twice; name other cores or another device",
            )
        seen.add(key)
