"""Which OpenCL devices the drivers list, and which of them to use."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from polymux.core.device_spec import AbsentDevice, DeviceSpec
from polymux.core.errors import DeviceUnavailable
from polymux.core.ids import DeviceId
from polymux.device import pocl
from polymux.device.cores import allowed_cores
from polymux.device.opencl import OpenCLDevice
from polymux.device.protocol import LaunchError
from polymux.device.request import DeviceRequest
from polymux.device.surroundings import Found, Surroundings

_INSTALL = "pip install 'polymux[opencl]' brings one for CPUs"


@dataclass(frozen=True, slots=True)
class Listed:
    """A device that a driver lists.

    Parameters
    ----------
    platform : pyopencl.Platform
    handle : pyopencl.Device
    """

    platform: Any
    handle: Any

    @property
    def label(self) -> str:
        """Name for people: the device and its driver."""
        return f"{self.handle.name.strip()} ({self.platform.name} {self.handle.driver_version})"


def open_devices(request: DeviceRequest, surroundings: Surroundings) -> Found:
    """Open the devices of a string ``opencl`` (all that there are) or ``opencl:INDEX``.

    Raises
    ------
    DeviceUnavailable
        If pyopencl is not installed, or no driver has a device that works.
    ConfigError
        If there is no device of that index.
    """
    request.check_options(("streams", "shares", "memory", "memory_nbytes", "launch_ahead"))
    if request.file or (request.target and not request.target.isdecimal()):
        raise request.error(request.target or request.file, "opencl takes the index of a device: opencl:0")
    cl = import_pyopencl()
    listed, absent = list_devices(cl)
    chosen = _chosen(request, listed)
    contexts = Contexts(cl, chosen)
    devices: list[OpenCLDevice] = []
    for item in chosen:
        try:
            index = surroundings.next_index + len(devices)
            devices.append(_open(cl, item, request, index, contexts.of(item)))
        except (DeviceUnavailable, LaunchError) as error:
            absent.append(AbsentDevice(f"opencl: {item.label}", str(error)))
    if not devices:
        raise DeviceUnavailable("; ".join(f"{item.name}: {item.reason}" for item in absent))
    return Found(devices, absent)


def import_pyopencl() -> Any:
    """Import pyopencl, in surroundings that keep PoCL and pyopencl from writing in odd places.

    Raises
    ------
    DeviceUnavailable
        If it is not installed.
    """
    pocl.set_environment()
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")  # drivers keep what they compile themselves
    try:
        return importlib.import_module("pyopencl")
    except ImportError as error:
        raise DeviceUnavailable(f"pyopencl is not installed ({error}); {_INSTALL}") from error


def list_devices(cl: Any) -> tuple[list[Listed], list[AbsentDevice]]:
    """List the devices of all drivers, in the drivers' order, each CPU once.

    Returns
    -------
    list of Listed
    list of AbsentDevice
        Those left out, because another PoCL drives the same cores better.

    Raises
    ------
    DeviceUnavailable
        If there is no driver, or none has a device.
    """
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise DeviceUnavailable(f"no OpenCL driver is installed ({error}); {_INSTALL}") from error
    listed: list[Listed] = []
    for platform in platforms:
        try:
            listed += [Listed(platform, handle) for handle in platform.get_devices()]
        except cl.Error:  # a driver without a device: nothing to report, nothing to use
            continue
    if not listed:
        names = ", ".join(platform.name for platform in platforms)
        raise DeviceUnavailable(
            f"no device is found by the OpenCL drivers ({names or 'there is none'}); {_INSTALL}"
        )
    return _without_duplicates(cl, listed)


def _without_duplicates(cl: Any, listed: Sequence[Listed]) -> tuple[list[Listed], list[AbsentDevice]]:
    def is_pocl_cpu(item: Listed) -> bool:
        return bool(item.platform.name == pocl.PLATFORM and item.handle.type & cl.device_type.CPU)

    best = max(filter(is_pocl_cpu, listed), key=_pocl_rank, default=None)
    kept = [item for item in listed if item is best or not is_pocl_cpu(item)]
    absent = [
        AbsentDevice(
            f"opencl: {item.label}",
            f"left out, since PoCL {best.handle.driver_version} drives the same cores and is newer",
        )
        for item in listed
        if best is not None and item is not best and is_pocl_cpu(item)
    ]
    return kept, absent


def _pocl_rank(item: Listed) -> tuple[bool, list[int]]:
    return pocl.knows_cpu(item.handle), [int(part) for part in re.findall(r"\d+", item.handle.driver_version)]


def _chosen(request: DeviceRequest, listed: Sequence[Listed]) -> Sequence[Listed]:
    if not request.target:
        return listed
    index = int(request.target)
    if index >= len(listed):
        found = "; ".join(f"opencl:{number}: {item.label}" for number, item in enumerate(listed))
        raise request.error(f"device {index}", f"the drivers list {len(listed)}: {found}")
    return listed[index : index + 1]


class Contexts:
    """One context for all devices of a driver that are opened together, so that they copy from each other directly.

    Parameters
    ----------
    cl : module
        pyopencl.
    chosen : sequence of Listed
    """

    def __init__(self, cl: Any, chosen: Sequence[Listed]) -> None:
        self._cl = cl
        self._chosen = chosen
        self._made: dict[Any, Any] = {}

    def of(self, item: Listed) -> Any:
        """Return the context for a device; None: it is to have one of its own."""
        handles = [other.handle for other in self._chosen if other.platform == item.platform]
        if len(handles) < 2:
            return None
        if item.platform not in self._made:
            try:
                self._made[item.platform] = self._cl.Context(handles)
            except self._cl.Error:  # one of them does not work: that is found out for each
                self._made[item.platform] = None
        return self._made[item.platform]


def _open(cl: Any, item: Listed, request: DeviceRequest, index: int, context: Any) -> OpenCLDevice:
    handle = item.handle
    details = [f"{item.platform.name} {handle.driver_version}", handle.opencl_c_version.strip()]
    if item.platform.name == pocl.PLATFORM and not pocl.knows_cpu(handle):
        name = pocl.teach_cpu(handle)
        details.append(f"it does not know this processor and was told to compile for {name}")
    kinds = cl.device_partition_property
    units = int(handle.max_compute_units)
    streams = request.streams(2, units)
    on_cores = bool(handle.type & cl.device_type.CPU)
    spec = DeviceSpec(
        id=DeviceId(f"opencl:{index}"),
        api="opencl",
        name=handle.name.strip(),
        memory_nbytes=request.memory_nbytes(int(handle.global_mem_size)),
        memory=_memory(request, on_cores),
        units=units,
        streams=streams,
        apis=("opencl",),
        partitionable=units > 1
        and any(kind in handle.partition_properties for kind in (kinds.BY_COUNTS, kinds.EQUALLY)),
        details="; ".join(details),
        shares=request.shares(units, streams),
        launch_ahead=request.launch_ahead(),
        cores=_cores(units) if on_cores else (),
    )
    return OpenCLDevice(spec, cl, handle, context)


def _memory(request: DeviceRequest, on_cores: bool) -> Literal["host", "own"]:
    """Option ``memory``: buffers of its own, or the segment itself where the host's cores are the device."""
    text = request.options.get("memory", "own")
    if text not in ("host", "own"):
        raise request.error(f"memory={text}", "give memory=own, or memory=host (the segment itself)")
    if text == "host" and not on_cores:
        raise request.error("memory=host", "only devices that are the host's cores can; give memory=own")
    return "host" if text == "host" else "own"


def _cores(units: int) -> tuple[int, ...]:
    """Which core each unit is, where that is known: PoCL has one for each core that the process may use."""
    allowed = allowed_cores()
    return allowed if len(allowed) == units else ()
