"""Units: each way to run one operation on one stream, with its performance model where there is one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from polymux.coexec.operation import ChunkKernel, Operation
from polymux.coexec.places import Place
from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec.compute import ComputeModel
from polymux.perfmodel.coexec.precision import Precision, allowed
from polymux.perfmodel.coexec.unit import UnitModel
from polymux.perfmodel.energy import PowerModel
from polymux.profiles import CoexecUnit
from polymux.profiles.coexec import LEARNED

_PRECISIONS: Mapping[str, Precision] = {"float64": "fp64", "float32": "fp32", "float16": "fp16"}


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A kernel on a stream.

    Parameters
    ----------
    place : Place
    kernel : ChunkKernel
    precision : str
        What it computes in.
    stored : CoexecUnit, optional
        What was measured of it: its model and the choices of calibration. None: nothing is known yet.
    """

    place: Place
    kernel: ChunkKernel
    precision: Precision
    stored: CoexecUnit | None = None
    scalars: Mapping[str, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """As ``"opencl:0/1/coexec_gemm"``."""
        return f"{self.place.stream}/{self.kernel.name}"

    def is_named(self, names: Collection[str]) -> bool:
        """Tell whether one of these names is this unit, its stream or its device."""
        return self.id in names or self.place.is_named(names)

    def model(self, compute: ComputeModel, powers: Mapping[str, PowerModel], memory_nbytes: int) -> UnitModel:
        """Make the unit as the optimizer wants it."""
        stored = self.stored
        return UnitModel(
            self.id,
            self.place.stream,
            compute,
            None if stored is None or self.place.on_host else stored.link,
            powers.get(self.place.stream, powers.get(self.place.device)),
            1 if stored is None else stored.tile,
            1 if stored is None else stored.min_chunk,
            0 if self.place.on_host else memory_nbytes,
            self.precision,
        )

    def record(self, compute: ComputeModel, dtype: np.dtype[np.generic], now_s: int) -> CoexecUnit:
        """Make what the store keeps of it, with a refreshed model."""
        if self.stored is not None:
            return replace(self.stored, compute=compute, measured_at=now_s)
        return CoexecUnit(
            self.kernel.name,
            len(self.place.units),
            DType.from_numpy(dtype).name_short,
            {},
            self.precision,
            LEARNED,
            compute,
            None,
            1,
            1,
            now_s,
            (LEARNED,),
        )


def units_of(
    operation: Operation,
    dtype: np.dtype[np.generic],
    places: Sequence[Place],
    stored: Mapping[str, Iterable[CoexecUnit]],
    devices_of: Mapping[str, Collection[str]],
) -> tuple[Unit, ...]:
    """List all units of an operation.

    Parameters
    ----------
    operation : Operation
    dtype : dtype
        Of the arrays.
    places : sequence of Place
    stored : mapping of str to iterable of CoexecUnit
        What was measured, by device key.
    devices_of : mapping of str to collection of str
        Which devices have a kernel, by its name.
    """
    short = DType.from_numpy(dtype).name_short
    found = []
    for kernel in operation.kernels:
        if kernel.dtypes and dtype.name not in kernel.dtypes:
            continue
        precision = kernel.precision or _PRECISIONS.get(dtype.name, "fp64")
        for place in places:
            if place.device not in devices_of.get(kernel.name, ()):
                continue
            known = next(
                (
                    unit
                    for unit in stored.get(place.device_key, ())
                    if (unit.kernel, unit.units, unit.dtype) == (kernel.name, len(place.units), short)
                ),
                None,
            )
            scalars = {} if known is None else known.scalars
            found.append(Unit(place, kernel, precision, known, scalars))
    return tuple(found)


def usable(
    units: Sequence[Unit],
    dtype: np.dtype[np.generic],
    lowest: Precision | None,
    names: Collection[str] | None,
) -> tuple[Unit, ...]:
    """Leave out units that compute less exactly than the caller allows, and those on devices that were not named.

    Raises
    ------
    InvalidRequest
        For a name that is none of a unit, stream or device.
    """
    unknown = sorted(name for name in names or () if not any(unit.is_named((name,)) for unit in units))
    if unknown:
        there = ", ".join(sorted({unit.place.device for unit in units}))
        raise InvalidRequest(
            f"devices={', '.join(unknown)}: no device of that name computes this on {dtype}; give devices (of"
            f" {there or 'none'}), their streams such as cpu:0/0, or units such as cpu:0/0/coexec_gemm"
        )
    own = _PRECISIONS.get(dtype.name, "fp64")
    return tuple(
        unit
        for unit in units
        if allowed(unit.precision, own, lowest) and (names is None or unit.is_named(names))
    )
