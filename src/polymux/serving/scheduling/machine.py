"""The devices that models can be scheduled on, with their shares, as the server describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from polymux.client import Client
from polymux.client.model_versions import runs_models
from polymux.core.ids import DeviceId, StreamId
from polymux.core.serving.model import ServingDevice
from polymux.profiles import device_key
from polymux.serving.errors import ModelLoadError

__all__ = ["Block", "Machine", "claim", "claiming", "first_share", "read_machine"]

Block = frozenset[int]
"""Units of a device that one stream uses."""

_FIRST_PART = 0.3
"""With this part of a device a model starts that has no profile (D-STACK)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices for the engine, and their streams.

    Attributes
    ----------
    devices : tuple of ServingDevice
    streams : mapping of (DeviceId, Block) to StreamId
        The stream that runs what is given a block of a device.
    """

    devices: tuple[ServingDevice, ...]
    streams: Mapping[tuple[DeviceId, Block], StreamId]

    def blocks(self, device: DeviceId, units: int) -> list[Block]:
        """Return the blocks of so many units of a device."""
        return [block for owner, block in self.streams if owner == device and len(block) == units]


def read_machine(status: Mapping[str, Any], only: str | None = None) -> Machine:
    """Find the devices that run ONNX models.

    Parameters
    ----------
    status : mapping
        What ``polymux status --json`` prints.
    only : str, optional
        The one device to use.

    Raises
    ------
    ModelLoadError
        If there is none.
    """
    devices: list[ServingDevice] = []
    streams: dict[tuple[DeviceId, Block], StreamId] = {}
    for device in status["devices"]:
        if not runs_models(device["apis"]) or device["lost"] is not None or only not in (None, device["id"]):
            continue
        name, units = DeviceId(device["id"]), int(device["units"])
        own: dict[Block, StreamId] = {}
        for stream in device["streams"]:
            block = frozenset(range(units) if stream["units"] is None else stream["units"])
            own.setdefault(block, StreamId(stream["id"]))  # of streams that use the same units one is enough
        shares = tuple(sorted({len(block) for block in own}))
        # Streams apart from each other come first, so that what is started next still finds a place.
        blocks = tuple(sorted(own, key=lambda block: (len(block), sorted(block))))
        devices.append(ServingDevice(name, units, shares, device_key(device), blocks))
        streams |= {(name, block): stream for block, stream in own.items()}
    if not devices:
        known = ", ".join(device["id"] for device in status["devices"]) or "none"
        wanted = "a device that runs ONNX models" if only is None else f"device {only} with ONNX models"
        raise ModelLoadError(f"the policy needs {wanted}; the server has: {known}")
    return Machine(tuple(devices), streams)


def first_share(device: ServingDevice) -> int:
    """Return the share with which a model starts that has no profile: the one nearest to 30 % of the device."""
    return min(device.shares, key=lambda share: (abs(share - _FIRST_PART * device.units), share))


def claim(client: Client, only: str | None = None) -> None:
    """Be the one who schedules requests on the devices that are to be used; where there are none, each model says so.

    Raises
    ------
    InvalidRequest
        When another one does.
    """
    try:
        machine = read_machine(client.status(), only)
    except ModelLoadError:
        return
    client.claim(device.id for device in machine.devices)


def claiming(connect: Callable[[], Client], only: str | None = None) -> Callable[[], Client]:
    """Return what connects as `connect` does, and claims the devices."""

    def connected() -> Client:
        client = connect()
        try:
            claim(client, only)
        except BaseException:
            client.close()
            raise
        return client

    return connected
