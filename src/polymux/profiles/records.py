"""What the store holds: models, grids of shares and batches, measured points."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from polymux.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A model that was measured.

    Parameters
    ----------
    key : str
        Of its content, by `polymux.profiles.model_key`.
    name : str
        What a person calls it.
    path : str
        Where its file was; for people only.
    batching : {"dynamic", "rewritten", "fixed"}
        Whether its batch is free, was made free by rewriting, or stays as the file says.
    weight_nbytes : int
        Of its weights.
    inputs : str
        The inputs of one item as they were measured, for people.
    """

    key: str
    name: str
    path: str = ""
    batching: str = "dynamic"
    weight_nbytes: int = 0
    inputs: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Which points make a profile whole.

    Parameters
    ----------
    units, batches : tuple of int
        Shares in compute units, and batch sizes; ascending.
    """

    units: tuple[int, ...]
    batches: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, axis in (("units", self.units), ("batches", self.batches)):
            if not axis or axis[0] < 1 or any(b <= a for a, b in pairwise(axis)):
                raise InvalidRequest(f"{name} are {axis}; give ascending numbers from 1 on")

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Every (units, batch), the smallest batch first."""
        return tuple((units, batch) for batch in self.batches for units in self.units)


@dataclass(frozen=True, slots=True)
class Point:
    """How long batches took at one place of the grid.

    Parameters
    ----------
    units, batch : int
    repeats : int
        How often it was measured, warm-up not counted.
    median_ns, mean_ns, p95_ns, min_ns : int
        Of the repeats.
    half_width_ns : int
        Half of the confidence interval of the median.
    confidence : float
        Of that interval: 0.95.
    measured_at : int
        Seconds since 1970.
    """

    units: int
    batch: int
    repeats: int
    median_ns: int
    mean_ns: int
    p95_ns: int
    min_ns: int
    half_width_ns: int
    confidence: float
    measured_at: int = 0

    def __post_init__(self) -> None:
        if min(self.units, self.batch, self.repeats) < 1:
            raise InvalidRequest(f"measured point {self}: units, batch and repeats are 1 or more")
        if not 1 <= self.min_ns <= self.median_ns <= self.p95_ns or self.mean_ns < 1:
            raise InvalidRequest(f"measured point {self}: its times contradict each other")
        if self.half_width_ns < 0 or not 0 < self.confidence < 1:
            raise InvalidRequest(f"measured point {self}: its confidence interval is none")


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What a node of a model's graph takes.

    Parameters
    ----------
    op : str
        Operator.
    flops, nbytes : float
        Operations, and bytes read and written, for one item.
    more_flops, more_nbytes : float
        The same for each further item of a batch.
    weight_nbytes : float
        Of the bytes, those of weights.
    is_known : bool
        Whether the operations were counted by a rule.
    """

    op: str
    flops: float
    more_flops: float
    nbytes: float
    more_nbytes: float
    weight_nbytes: float
    is_known: bool


@dataclass(frozen=True, slots=True)
class Roof:
    """What a share of a device can do at most, measured.

    Parameters
    ----------
    units : int
    flops_per_s : float
        Of a product of large matrices in single precision.
    bandwidth_bytes_per_s : float
        Of a sum of large arrays, bytes read and written.
    """

    units: int
    flops_per_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if self.units < 1 or not (self.flops_per_s > 0 and self.bandwidth_bytes_per_s > 0):
            raise InvalidRequest(f"roof {self}: give positive numbers")


@dataclass(frozen=True, slots=True)
class Beside:
    """How long batches of a model took alone, and while another model ran batch after batch on other units.

    Parameters
    ----------
    model, neighbour : str
        Keys.
    units, batch : int
        Of the model.
    neighbour_units, neighbour_batch : int
    alone_ns, beside_ns : int
        Medians.
    measured_at : int
        Seconds since 1970.
    """

    model: str
    neighbour: str
    units: int
    batch: int
    neighbour_units: int
    neighbour_batch: int
    alone_ns: int
    beside_ns: int
    measured_at: int = 0

    def __post_init__(self) -> None:
        numbers = (self.units, self.batch, self.neighbour_units, self.neighbour_batch)
        if min(*numbers, self.alone_ns, self.beside_ns) < 1:
            raise InvalidRequest(f"measured pair {self}: its numbers are 1 or more")

    @property
    def slowdown(self) -> float:
        """Time beside the neighbour over time alone."""
        return self.beside_ns / self.alone_ns
