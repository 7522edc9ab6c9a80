"""What is served where: models with their deadlines, devices with their shares, requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType, Protocol

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.value import value

ModelName = NewType("ModelName", str)
RequestId = NewType("RequestId", int)
"""Given by the driver, never used twice by it."""
BatchId = NewType("BatchId", int)
"""Given by the engine, counted from 1."""


class LatencySurface(Protocol):
    """How long a batch takes on a part of a device: f_L(share, batch) of D-STACK."""

    @property
    def max_batch(self) -> int:
        """Largest batch that may be formed."""
        ...

    def latency_ns(self, units: int, batch: int) -> int:
        """Time of one batch on `units` compute units, in ns; falls in `units` and rises in `batch`, at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the scheduling of requests sees it.

    Parameters
    ----------
    name : ModelName
    slo_ns : int
        A request that does not say otherwise is to be answered within this, in ns from its arrival.
    surfaces : mapping of str to LatencySurface
        By kind of device (`ServingDevice.kind`); without one for a kind, the model is not profiled there.
    weight : int
        Its part of the device time relative to others, when there is not enough; 100 is normal.
    priority : int
        Larger is served first, whatever the weights.
    rate_per_s : float
        Requests per second that are expected; 0: not known, policies then use the measured rate.
    memory_nbytes : int
        Of its weights, on each device that runs it.
    max_batch : int
        Largest batch that the model takes, where it has no surface.
    """

    name: ModelName
    slo_ns: int
    surfaces: Mapping[str, LatencySurface] = field(default_factory=dict)
    weight: int = 100
    priority: int = 0
    rate_per_s: float = 0.0
    memory_nbytes: int = 0
    max_batch: int = 1

    def __post_init__(self) -> None:
        if self.slo_ns <= 0:
            raise InvalidRequest(f"model {self.name}: slo_ns is {self.slo_ns}; give more than 0")
        if not 1 <= self.weight <= 10_000:
            raise InvalidRequest(f"model {self.name}: weight is {self.weight}; give 1 to 10000")
        if self.rate_per_s < 0:
            raise InvalidRequest(f"model {self.name}: rate_per_s is {self.rate_per_s}; give 0 or more")
        if self.max_batch < 1:
            raise InvalidRequest(f"model {self.name}: max_batch is {self.max_batch}; give 1 or more")


@dataclass(frozen=True, slots=True)
class ServingDevice:
    """A device whose compute units are divided among batches.

    Parameters
    ----------
    id : DeviceId
    units : int
        Compute units; 100 where shares are a percentage of the device.
    shares : tuple of int
        Numbers of units that a batch may be given, ascending.
    kind : str
        Devices of one kind have the same surfaces.
    blocks : tuple of frozenset of int
        The sets of units that can be given to a batch, where only certain ones can (streams of a live device); empty:
        any units do, only their number counts.
    memory_nbytes : int
        Capacity; 0: not known.
    """

    id: DeviceId
    units: int
    shares: tuple[int, ...]
    kind: str = ""
    blocks: tuple[frozenset[int], ...] = ()
    memory_nbytes: int = 0

    def __post_init__(self) -> None:
        allowed = range(1, self.units + 1)
        if not self.shares or list(self.shares) != sorted(set(self.shares) & set(allowed)):
            raise InvalidRequest(
                f"device {self.id}: shares are {self.shares}; give different numbers of units from 1 to {self.units},"
                " ascending"
            )
        if self.blocks and {len(block) for block in self.blocks} != set(self.shares):
            raise InvalidRequest(
                f"device {self.id}: its blocks have other sizes than its shares {self.shares}"
            )


@value
class Request:
    """A request.

    Parameters
    ----------
    id : RequestId
    model : ModelName
    arrival_ns, deadline_ns : int
        Monotonic time.
    items : int
        How many items of a batch it brings; it is never divided.
    """

    id: RequestId
    model: ModelName
    arrival_ns: int
    deadline_ns: int
    items: int = 1
