"""Which model goes to which device, with which share, and how much of its load: the answer to demands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Replica:
    """A model on a lane.

    Parameters
    ----------
    model : str
    rate_per_s : float
        The part of its requests that goes here.
    batch : int
        Items of a batch as it is planned; fewer when fewer wait.
    busy : float
        Part of the lane's time that its batches take, 0 to 1.
    """

    model: str
    rate_per_s: float
    batch: int
    busy: float


@dataclass(frozen=True, slots=True)
class Lane:
    """A part of a device that runs one batch at a time.

    Parameters
    ----------
    units : int
        The share of its batches.
    replicas : tuple of Replica
    cycle_ns : int
        Time within which each of its models gets its turn.
    """

    units: int
    replicas: tuple[Replica, ...]
    cycle_ns: int

    @property
    def busy(self) -> float:
        """Part of the time in which a batch runs, 0 to 1."""
        return sum(replica.busy for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class PlacedDevice:
    """A device of a kind, divided into lanes.

    Parameters
    ----------
    kind : str
    units : int
    lanes : tuple of Lane
    free : bool
        It is not divided: its one lane is the whole device, and each batch gets the share that the policy chooses.
    """

    kind: str
    units: int
    lanes: tuple[Lane, ...]
    free: bool = False

    @property
    def models(self) -> tuple[str, ...]:
        """Its models, each once, in the order of the lanes."""
        return tuple(dict.fromkeys(replica.model for _, replica in self.replicas()))

    @property
    def busy(self) -> float:
        """Part of its units times time that batches take, 0 to 1."""
        return sum(lane.busy * lane.units for lane in self.lanes) / self.units

    def replicas(self) -> Iterator[tuple[Lane, Replica]]:
        """Each replica with its lane."""
        return ((lane, replica) for lane in self.lanes for replica in lane.replicas)

    def rate_per_s(self, model: str) -> float:
        """Requests per second of a model that go to this device."""
        return sum(replica.rate_per_s for _, replica in self.replicas() if replica.model == model)

    def shares(self, model: str) -> tuple[int, ...]:
        """The shares that a model has here, ascending."""
        return tuple(sorted({lane.units for lane, replica in self.replicas() if replica.model == model}))


@dataclass(frozen=True, slots=True)
class Unplaced:
    """What found no place, and why."""

    model: str
    rate_per_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Placement:
    """All devices, and what found no place on them."""

    devices: tuple[PlacedDevice, ...]
    unplaced: tuple[Unplaced, ...] = field(default=())

    @property
    def counts(self) -> dict[str, int]:
        """Number of devices by kind."""
        return dict(Counter(device.kind for device in self.devices))

    def hosts(self) -> dict[str, list[int]]:
        """Indices of the devices that have each model."""
        found: dict[str, list[int]] = {}
        for index, device in enumerate(self.devices):
            for model in device.models:
                found.setdefault(model, []).append(index)
        return found
