"""What is to be calibrated, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polymux.client import Client
from polymux.core.errors import ConfigError, InvalidRequest
from polymux.perfmodel.coexec.precision import Precision
from polymux.profiles import CoexecUnit

OPERATIONS = ("gemm", "conv2d")
OWN_PRECISION: dict[str, Precision] = {"f4": "fp32", "f8": "fp64"}
"""That of the arrays' types."""


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """What to calibrate, and how thoroughly.

    Parameters
    ----------
    operations : tuple of str
        Of `OPERATIONS`.
    dtype : str
        ``"f4"`` or ``"f8"``.
    device_s : float
        Time for the samples of a device, in s; choosing methods and compiling come on top.
    repeats : int
        Undisturbed samples of each shape.
    again : bool
        Measure also what the store has.
    quick : bool
        Few and small shapes, to try the way; the models are worth little.

    Raises
    ------
    InvalidRequest
        For an operation, a dtype or a number that cannot be.
    """

    operations: tuple[str, ...] = OPERATIONS
    dtype: str = "f4"
    device_s: float = 15.0
    repeats: int = 5
    again: bool = False
    quick: bool = False

    def __post_init__(self) -> None:
        for operation in self.operations:
            if operation not in OPERATIONS:
                raise InvalidRequest(f"operation {operation!r}: give {' or '.join(OPERATIONS)}")
        if self.dtype not in OWN_PRECISION:
            raise InvalidRequest(f"dtype {self.dtype!r}: give {' or '.join(OWN_PRECISION)}")
        if not self.device_s > 0 or self.repeats < 2:
            raise InvalidRequest(
                f"{self.device_s} s and {self.repeats} repeats: give more than 0 s and at least 2"
            )


@dataclass(frozen=True, slots=True)
class Place:
    """A share that can be calibrated: a device as the server describes it, one of its streams, the stream's units."""

    device: Mapping[str, Any]
    stream: str
    units: int

    @property
    def name(self) -> str:
        """For people."""
        units = "1 unit" if self.units == 1 else f"{self.units} units"
        return f"{self.device['id']} ({units})"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found of one kernel on one share.

    Parameters
    ----------
    place : Place
    kernel : str
    unit : CoexecUnit, optional
        None: it is not there, or of no use.
    rate : float
        Operations per second of the fastest shape.
    why_not : str
        Why there is no unit; empty when there is one.
    compared : tuple of (str, float)
        Methods with their times for the shapes that they were compared by, in s, the best first.
    disturbed : int
        Samples that were repeated since something else disturbed them.
    is_busy : bool
        Whether the machine had so much else to do that the models are in doubt.
    is_stored : bool
        Whether it was in the store already.
    seconds : float
        How long it took.
    """

    place: Place
    kernel: str
    unit: CoexecUnit | None
    rate: float = 0.0
    why_not: str = ""
    compared: tuple[tuple[str, float], ...] = ()
    disturbed: int = 0
    is_busy: bool = False
    is_stored: bool = False
    seconds: float = 0.0


def places(client: Client) -> list[Place]:
    """List the shares that a server offers, each number of units of a device once; lost devices are left out.

    Raises
    ------
    ConfigError
        If there is none.
    """
    found = []
    for device in client.status()["devices"]:
        if device["lost"] is not None or not {"cpu", "opencl", "cuda"} & set(device["apis"]):
            continue
        streams: dict[int, str] = {}
        for stream in device["streams"]:
            units = device["units"] if stream["units"] is None else len(stream["units"])
            streams.setdefault(units, stream["id"])
        found += [Place(device, stream, units) for units, stream in sorted(streams.items())]
    if not found:
        raise ConfigError("server", "devices", "none", "none computes built-in kernels; give a cpu device")
    return found
