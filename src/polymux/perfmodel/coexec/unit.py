"""A unit: one way to run one operation on one device."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.compute import ComputeModel
from polymux.perfmodel.coexec.link import LinkModel
from polymux.perfmodel.coexec.precision import PRECISIONS, Precision
from polymux.perfmodel.energy import PowerModel


@dataclass(frozen=True, slots=True)
class UnitModel:
    """One way to run one operation on one device, as it is predicted.

    Parameters
    ----------
    id : str
        ``"cpu:0/blas"``, ``"cpu:0/bf16"``, ``"opencl:0/gemm"``.
    device : str
        Units of the same device are alternatives: at most one of them is used at a time.
    compute : ComputeModel
        Of pieces that are where the unit can reach them.
    link : LinkModel, optional
        None: it works on the host's memory, and nothing is copied.
    power : PowerModel, optional
        Of the device while the unit computes, and while it does not.
    tile : int
        What a piece should be a multiple of, along the axis that is split.
    min_chunk : int
        Smallest piece worth a launch, along that axis.
    memory_nbytes : int
        What its pieces may take at a time; 0: there is no limit of its own.
    precision : Precision
        That it rounds its inputs to.

    Raises
    ------
    InvalidRequest
        If a number is out of its range or there is no such precision.
    """

    id: str
    device: str
    compute: ComputeModel
    link: LinkModel | None = None
    power: PowerModel | None = None
    tile: int = 1
    min_chunk: int = 1
    memory_nbytes: int = 0
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        if self.tile < 1 or self.min_chunk < 1 or self.memory_nbytes < 0:
            raise InvalidRequest(
                f"unit {self.id}: tile {self.tile}, smallest chunk {self.min_chunk}, memory {self.memory_nbytes} bytes;"
                " give a tile and a chunk of 1 or more, and 0 bytes or more"
            )
        if self.precision not in PRECISIONS:
            raise InvalidRequest(
                f"unit {self.id}: precision {self.precision!r}; there are {', '.join(PRECISIONS)}"
            )


@dataclass(frozen=True, slots=True)
class Load:
    """What else runs on a device.

    Parameters
    ----------
    slowdown : float
        How many times longer computing takes; 1: nothing is in the way.
    ready_s : float, s
        When the device is free, from now.

    Raises
    ------
    InvalidRequest
        If the slowdown is below 1 or the time negative.
    """

    slowdown: float = 1.0
    ready_s: float = 0.0

    def __post_init__(self) -> None:
        if not (1 <= self.slowdown < float("inf") and 0 <= self.ready_s < float("inf")):
            raise InvalidRequest(
                f"load: slowdown {self.slowdown}, ready in {self.ready_s} s; give 1 or more, and 0 s or more"
            )


IDLE = Load()
"""Nothing else runs."""
