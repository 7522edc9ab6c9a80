"""What a registry entry gets and gives when a device is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from polymux.core.device_spec import AbsentDevice
from polymux.device.protocol import Device, NativeCaller
from polymux.device.request import DeviceRequest


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a device needs from whoever opens it.

    Parameters
    ----------
    next_index : int
        Number of the next device of this API: ``cpu:<next_index>``.
    native_caller : NativeCaller, optional
        Runs native kernels.
    """

    next_index: int = 0
    native_caller: NativeCaller | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a request came to.

    Parameters
    ----------
    devices : sequence of Device
        Opened; the receiver closes them.
    absent : sequence of AbsentDevice
        What was seen but left out, and why.
    """

    devices: Sequence[Device]
    absent: Sequence[AbsentDevice] = ()


class DeviceFactory(Protocol):
    """An entry of the registry.

    Raises
    ------
    ConfigError
        If the request cannot be followed on any machine, or names something that this machine lacks.
    DeviceUnavailable
        If the API is not usable here: the sentence for ``polymux devices``.
    """

    def __call__(self, request: DeviceRequest, surroundings: Surroundings, /) -> Found:
        """Open the devices of a request."""
        ...
