"""What was measured of the kernels that compute an operation on several devices together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.compute import ComputeModel
from polymux.perfmodel.coexec.link import LinkModel
from polymux.perfmodel.coexec.precision import Precision
from polymux.profiles.identity import DeviceIdentity, identify, package_version

_LIBRARIES = {"cpu": ("numpy", "onnxruntime", "torch"), "opencl": ("pyopencl",), "cuda": ("cupy",)}
_KERNELS = "1"
"""Version of the chunk kernels: raised when their times, or what ``method`` or ``tile`` mean, change."""


BUSY, QUICK, LEARNED = "measured on a busy machine", "calibrated quickly", "learned while it ran"
"""Notes."""


@dataclass(frozen=True, slots=True)
class CoexecUnit:
    """A share of a device with the kernel that it runs, as it was calibrated.

    Parameters
    ----------
    kernel : str
        Such as ``"coexec_gemm"``.
    units : int
        Compute units of the share.
    dtype : str
        Short name of the arrays' type: ``"f4"``.
    scalars : mapping of str to int
        What was found to be best there: to be given to the kernel with every task.
    precision : Precision
        In which it computes.
    library : str
        What computes, for people.
    compute : ComputeModel
    link : LinkModel, optional
        Copies between host and device; None: the device works on the host's memory.
    tile, min_chunk : int
        Rows, images or output channels: a multiple that suits the kernel, and the least that is worth a task.
    measured_at : int
        Seconds since 1970.
    notes : tuple of str
        What makes it doubtful, for people.
    """

    kernel: str
    units: int
    dtype: str
    scalars: Mapping[str, int]
    precision: Precision
    library: str
    compute: ComputeModel
    link: LinkModel | None = None
    tile: int = 1
    min_chunk: int = 1
    measured_at: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.units, self.tile, self.min_chunk) < 1:
            raise InvalidRequest(f"calibrated {self.kernel}: units, tile and min_chunk are 1 or more")

    @property
    def is_calibrated(self) -> bool:
        """Whether a whole calibration is behind it, rather than a quick one or what a session happened to see."""
        return self.library != LEARNED and not {LEARNED, QUICK} & set(self.notes)

    @property
    def key(self) -> tuple[int, str, str]:
        """What tells it from others of its device: units, kernel, dtype."""
        return self.units, self.kernel, self.dtype

    def to_json(self) -> str:
        """Write it as JSON."""
        link = None if self.link is None else self.link.to_json()
        return json.dumps(
            {
                "scalars": dict(self.scalars),
                "precision": self.precision,
                "library": self.library,
                "compute": self.compute.to_json(),
                "link": link,
                "tile": self.tile,
                "min_chunk": self.min_chunk,
                "measured_at": self.measured_at,
                "notes": list(self.notes),
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, units: int, kernel: str, dtype: str, text: str) -> CoexecUnit:
        """Read what `to_json` has written.

        Raises
        ------
        ValueError, KeyError, TypeError, InvalidRequest
            If it is something else.
        """
        fields: dict[str, Any] = json.loads(text)
        link = fields["link"]
        return cls(
            kernel,
            units,
            dtype,
            {str(name): int(value) for name, value in fields["scalars"].items()},
            cast(Precision, fields["precision"]),
            str(fields["library"]),
            ComputeModel.from_json(fields["compute"]),
            None if link is None else LinkModel.from_json(link),
            int(fields["tile"]),
            int(fields["min_chunk"]),
            int(fields["measured_at"]),
            tuple(map(str, fields["notes"])),
        )


def coexec_identity(device: Mapping[str, Any]) -> DeviceIdentity:
    """Tell on which kind of device, driver and libraries a calibration holds.

    Parameters
    ----------
    device : mapping
        As the server describes it; see `polymux.profiles.identify`.

    Notes
    -----
    The number of units of the whole device does not count: a calibration is of a share, and holds for as many units of
    any device of its kind.
    """
    found = identify(device)
    versions = {name: number for name in _LIBRARIES.get(found.api, ()) if (number := package_version(name))}
    return replace(found, units=1, versions=versions | {"coexec kernels": _KERNELS})


def coexec_device_key(device: Mapping[str, Any]) -> str:
    """Key of a device's calibrations; changes with its kind, driver and libraries."""
    return coexec_identity(device).key
