"""What came of a simulation of served models, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from polymux.core.ids import DeviceId
from polymux.core.serving.model import BatchId, ModelName
from polymux.sim.serving.arrivals import SECOND_NS, Times


@dataclass(slots=True)
class BatchSpan:
    """One batch: `items` items of `requests` requests of a model, on `units` units of a device."""

    batch: BatchId
    model: ModelName
    device: DeviceId
    units: int
    block: frozenset[int] | None
    start_ns: int
    end_ns: int
    requests: int
    items: int
    failed: bool = False


@dataclass(slots=True)
class ModelOutcome:
    """What became of the requests for a model that arrived in the measured time.

    Parameters
    ----------
    name : ModelName
    slo_ns : int
    offered : int
        All that arrived: `refused` + `answered` + `failed` + `unfinished`.
    refused : int
        By admission, or later out of the queue.
    answered : int
        Of these, `on_time` by their deadlines.
    on_time : int
    failed : int
    unfinished : int
        Still waiting when the simulation ended.
    batches, items : int
        Of the batches that ended in the measured time.
    device_ns, unit_ns : int
        Time that batches ran in the measured time, and the same times the units of each.
    latencies_ns : array of int64, shape (answered,)
        From arrival to answer, ascending.
    seconds : float
        Length of the measured time.
    throughput_per_s : float
        Answers within the measured time, per second.
    """

    name: ModelName
    slo_ns: int
    seconds: float
    offered: int = 0
    refused: int = 0
    answered: int = 0
    on_time: int = 0
    failed: int = 0
    unfinished: int = 0
    batches: int = 0
    items: int = 0
    device_ns: int = 0
    unit_ns: int = 0
    throughput_per_s: float = 0.0
    latencies_ns: Times = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    @property
    def goodput_per_s(self) -> float:
        """Requests that arrived in the measured time and were answered on time, per second."""
        return self.on_time / self.seconds

    @property
    def attainment(self) -> float:
        """Part of all offered requests that was answered on time; 1 when there were none."""
        return self.on_time / self.offered if self.offered else 1.0

    @property
    def admitted(self) -> int:
        """Offered and not refused."""
        return self.offered - self.refused

    @property
    def admitted_on_time(self) -> float:
        """Part of the admitted requests that was answered on time; 1 when there were none."""
        return self.on_time / self.admitted if self.admitted else 1.0

    @property
    def late(self) -> int:
        """Answered after the deadline."""
        return self.answered - self.on_time

    @property
    def mean_batch(self) -> float:
        """Items per batch."""
        return self.items / self.batches if self.batches else 0.0

    def percentile_ns(self, percent: float) -> int | None:
        """Latency within which this percentage was answered (nearest rank); None when nothing was answered."""
        count = len(self.latencies_ns)
        if not count:
            return None
        rank = max(1, int(np.ceil(percent / 100 * count)))
        return int(self.latencies_ns[rank - 1])


@dataclass(slots=True)
class DeviceOutcome:
    """What a device did in the measured time.

    Parameters
    ----------
    id : DeviceId
    units : int
    busy_unit_ns : int
        Time that batches ran, times their units.
    seconds : float
    energy_j : float, optional
    """

    id: DeviceId
    units: int
    seconds: float
    busy_unit_ns: int = 0
    energy_j: float | None = None

    @property
    def utilisation(self) -> float:
        """Part of its units that batches used, 0 to 1."""
        return self.busy_unit_ns / (self.seconds * SECOND_NS * self.units)


@dataclass(slots=True)
class ServingOutcome:
    """The whole run.

    Parameters
    ----------
    models : dict of ModelName to ModelOutcome
    devices : dict of DeviceId to DeviceOutcome
    spans : list of BatchSpan
        Every batch, by its end; empty when the scenario says so.
    seconds : float
        Measured time: from the warm-up to the end of arrivals.
    requests : int
        All that were simulated.
    stalled : int
        Requests that waited at the end while nothing ran and the policy had asked for no time: its defect.
    """

    models: dict[ModelName, ModelOutcome]
    devices: dict[DeviceId, DeviceOutcome]
    spans: list[BatchSpan]
    seconds: float
    requests: int = 0
    stalled: int = 0

    @property
    def offered(self) -> int:
        """Requests of all models in the measured time."""
        return sum(model.offered for model in self.models.values())

    @property
    def throughput_per_s(self) -> float:
        """Answers per second of all models."""
        return sum(model.throughput_per_s for model in self.models.values())

    @property
    def goodput_per_s(self) -> float:
        """Answers on time per second of all models."""
        return sum(model.goodput_per_s for model in self.models.values())

    @property
    def attainment(self) -> float:
        """Part of all offered requests that was answered on time."""
        offered = self.offered
        return sum(model.on_time for model in self.models.values()) / offered if offered else 1.0

    @property
    def admitted_on_time(self) -> float:
        """Part of all admitted requests that was answered on time."""
        admitted = sum(model.admitted for model in self.models.values())
        return sum(model.on_time for model in self.models.values()) / admitted if admitted else 1.0

    @property
    def utilisation(self) -> float:
        """Part of all units that batches used, 0 to 1."""
        units = sum(device.units for device in self.devices.values())
        return sum(d.busy_unit_ns for d in self.devices.values()) / (self.seconds * SECOND_NS * units)

    @property
    def energy_j(self) -> float | None:
        """Of all devices; None when the power of one is not known."""
        known = [d.energy_j for d in self.devices.values() if d.energy_j is not None]
        return sum(known) if len(known) == len(self.devices) else None

    @property
    def jain(self) -> float:
        """Jain's index of the device times of the models that had requests: 1 when all are equal, 1/n when one has all.

        References
        ----------
        Jain, Chiu, Hawe: A quantitative measure of fairness and discrimination, DEC TR-301 (1984).
        """
        times = [model.device_ns for model in self.models.values() if model.offered]
        squares = sum(time * time for time in times)
        return sum(times) ** 2 / (len(times) * squares) if squares else 1.0
