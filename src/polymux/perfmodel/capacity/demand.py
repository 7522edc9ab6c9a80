"""What a placement has to provide: models with rates and deadlines, and kinds of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polymux.core.errors import InvalidRequest
from polymux.core.serving.model import LatencySurface

POISSON = 1.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests for a model that are to be answered in time.

    Parameters
    ----------
    model : str
    rate_per_s : float
        Requests per second; 0: the model only has to be there.
    slo_ns : int
        From a request's arrival to its answer.
    surfaces : mapping of str to LatencySurface
        By kind of device; the model does not run on other kinds.
    items : int
        Of a batch, that each request brings.
    dispersion : float
        Variance of the number of arrivals over its mean: 0 for equal distances, 1 for Poisson, more for bursts.
    memory_nbytes : int
        Of its weights, on each device where it is placed.
    """

    model: str
    rate_per_s: float
    slo_ns: int
    surfaces: Mapping[str, LatencySurface]
    items: int = 1
    dispersion: float = POISSON
    memory_nbytes: int = 0

    def __post_init__(self) -> None:
        for name, low in (
            ("rate_per_s", 0),
            ("slo_ns", 1),
            ("items", 1),
            ("dispersion", 0),
            ("memory_nbytes", 0),
        ):
            value = getattr(self, name)
            if not low <= value < float("inf"):
                raise InvalidRequest(f"model {self.model}: {name} is {value}; give {low} or more")


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A kind of device of which some may be used.

    Parameters
    ----------
    name : str
    units : int
        Compute units of each; 100 where shares are a percentage.
    shares : tuple of int
        Numbers of units that a batch may be given, ascending.
    memory_nbytes : int
        Of each; 0: not known, any models fit.
    limit : int, optional
        How many there are at most; None: as many as are needed.
    cost : float
        Of each, in any unit that all kinds have in common.
    """

    name: str
    units: int
    shares: tuple[int, ...]
    memory_nbytes: int = 0
    limit: int | None = None
    cost: float = 1.0

    def __post_init__(self) -> None:
        shares = self.shares
        if (
            not shares
            or list(shares) != sorted(set(shares))
            or not 1 <= shares[0] <= shares[-1] <= self.units
        ):
            raise InvalidRequest(
                f"devices {self.name}: shares are {shares}; give different numbers from 1 to {self.units}, ascending"
            )
        if not 0 < self.cost < float("inf"):
            raise InvalidRequest(f"devices {self.name}: cost is {self.cost}; give more than 0")
        if self.limit is not None and self.limit < 0:
            raise InvalidRequest(f"devices {self.name}: limit is {self.limit}; give 0 or more")
