"""Lanes and devices of one kind while they are filled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.placement import Lane, PlacedDevice, Replica
from polymux.perfmodel.capacity.work import Floats, Work, WorkModel, lane_load

MOST_DEVICES = 10_000
"""Of a kind without a limit."""
_FULL = 0.99
"""A lane that is fuller is offered nothing more."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of a demand's rate, as it is put into a lane; `planned_per_s` includes the headroom, `rate_per_s` not."""

    demand: Demand
    model: WorkModel
    rate_per_s: float
    planned_per_s: float


class Bins:
    """The devices of one kind.

    Parameters
    ----------
    kind : DeviceKind
    cycles_ns : array of float64, shape (cycles,), ns
    caution : float
        Standard deviations of a cycle's work that a lane keeps free.
    """

    def __init__(self, kind: DeviceKind, cycles_ns: Floats, caution: float) -> None:
        self.kind = kind
        self.cycles_ns = cycles_ns
        self._caution = caution
        self._widths = np.array(kind.shares, np.int64)
        self._mean = np.empty((0, len(cycles_ns)))
        self._variance = np.empty((0, len(cycles_ns)))
        self._share: NDArray[np.int64] = np.empty(0, np.int64)
        self._device: NDArray[np.int64] = np.empty(0, np.int64)
        self._load = np.empty(0)
        self._portions: list[list[Portion]] = []
        self._free_units: NDArray[np.int64] = np.empty(0, np.int64)
        self._free_memory: NDArray[np.int64] = np.empty(0, np.int64)
        self._models: list[dict[str, None]] = []
        self._homes: dict[str, list[int]] = {}

    @property
    def devices(self) -> int:
        """How many are in use."""
        return len(self._models)

    @property
    def limit(self) -> int:
        """How many there may be."""
        return MOST_DEVICES if self.kind.limit is None else min(self.kind.limit, MOST_DEVICES)

    @property
    def is_full(self) -> bool:
        """Whether no further device may be used."""
        return self.devices >= self.limit

    def fits_memory(self, demand: Demand) -> bool:
        """Whether an empty device could hold the model."""
        return not self.kind.memory_nbytes or demand.memory_nbytes <= self.kind.memory_nbytes

    def find_lane(self, demand: Demand, work: Work) -> tuple[int, float] | None:
        """Find the lane that has room and of which it takes least.

        Returns
        -------
        tuple of int and float, or None
            The lane, and what it takes of the units of a device.
        """
        lanes = np.flatnonzero(self._load[: len(self._portions)] < _FULL)
        if not lanes.size:
            return None
        lanes = lanes[self._has_memory(demand)[self._device[lanes]]]
        if not lanes.size:
            return None
        share = self._share[lanes]
        mean = self._mean[lanes] + work.mean_ns[share]
        load = lane_load(
            mean, self._variance[lanes] + work.variance_ns2[share], self.cycles_ns, self._caution
        )
        fits = np.flatnonzero(load <= 1 + _ROUNDING)
        if not fits.size:
            return None
        taken = (load[fits] - self._load[lanes[fits]]) * self._widths[share[fits]]
        best = int(np.argmin(taken - 1e-6 * load[fits]))  # of equal ones the fullest
        return int(lanes[fits[best]]), float(taken[best])

    def find_device(self, demand: Demand, width: int) -> int | None:
        """Find the used device with the least free units that are enough for a lane of this width."""
        free = np.where(self._has_memory(demand), self._free_units, 0)
        fitting = np.flatnonzero(free >= width)
        return int(fitting[np.argmin(free[fitting])]) if fitting.size else None

    def widest_gap(self, demand: Demand) -> int:
        """Most free units of a used device that has the memory for a model."""
        return int(np.where(self._has_memory(demand), self._free_units, 0).max(initial=0))

    def add_device(self) -> int:
        """Begin an empty device."""
        self._free_units = np.append(self._free_units, self.kind.units)
        self._free_memory = np.append(self._free_memory, self.kind.memory_nbytes)
        self._models.append({})
        return self.devices - 1

    def add_lane(self, device: int, share: int) -> int:
        """Begin an empty lane; `share` is the index of its width."""
        lane = len(self._portions)
        if lane == len(self._share):
            more = max(64, lane)
            shape = (more, len(self.cycles_ns))
            self._mean = np.concatenate([self._mean, np.zeros(shape)])
            self._variance = np.concatenate([self._variance, np.zeros(shape)])
            self._share = np.concatenate([self._share, np.zeros(more, np.int64)])
            self._device = np.concatenate([self._device, np.zeros(more, np.int64)])
            self._load = np.concatenate([self._load, np.zeros(more)])
        self._share[lane], self._device[lane] = share, device
        self._free_units[device] -= self._widths[share]
        self._portions.append([])
        return lane

    def put(self, lane: int, portion: Portion, work: Work) -> None:
        """Add a model's portion to a lane that has room."""
        share, device = self._share[lane], int(self._device[lane])
        self._mean[lane] += work.mean_ns[share]
        self._variance[lane] += work.variance_ns2[share]
        self._portions[lane].append(portion)
        self._load[lane] = lane_load(self._mean[lane], self._variance[lane], self.cycles_ns, self._caution)
        name = portion.demand.model
        if name not in self._models[device]:
            self._models[device][name] = None
            self._homes.setdefault(name, []).append(device)
            self._free_memory[device] -= portion.demand.memory_nbytes

    def widen(self) -> None:
        """Give the units that are left on each device to its lanes, the fullest first."""
        by_device: dict[int, list[int]] = {}
        for lane in range(len(self._portions)):
            by_device.setdefault(int(self._device[lane]), []).append(lane)
        for device, lanes in by_device.items():
            while self._free_units[device] > 0:
                if not any(self._widen_lane(lane) for lane in sorted(lanes, key=lambda i: -self._load[i])):
                    break

    def _widen_lane(self, lane: int) -> bool:
        share, device = int(self._share[lane]), int(self._device[lane])
        if share + 1 == len(self._widths):
            return False
        more = int(self._widths[share + 1] - self._widths[share])
        if more > self._free_units[device]:
            return False
        mean, variance = np.zeros(len(self.cycles_ns)), np.zeros(len(self.cycles_ns))
        for portion in self._portions[lane]:
            work = portion.model.work(portion.planned_per_s)
            mean += work.mean_ns[share + 1]
            variance += work.variance_ns2[share + 1]
        load = float(lane_load(mean, variance, self.cycles_ns, self._caution))
        if load > self._load[lane]:  # a surface that does not fall
            return False
        self._mean[lane], self._variance[lane], self._load[lane] = mean, variance, load
        self._share[lane] = share + 1
        self._free_units[device] -= more
        return True

    def placed(self) -> list[PlacedDevice]:
        """List the devices as they are now, without empty ones."""
        lanes: list[list[Lane]] = [[] for _ in range(self.devices)]
        for lane, portions in enumerate(self._portions):
            lanes[int(self._device[lane])].append(self._lane(lane, portions))
        return [PlacedDevice(self.kind.name, self.kind.units, tuple(of)) for of in lanes if of]

    def _lane(self, lane: int, portions: list[Portion]) -> Lane:
        share = int(self._share[lane])
        parts = (self._mean[lane] + self._caution * np.sqrt(self._variance[lane])) / self.cycles_ns
        cycle = int(np.argmin(parts))
        replicas = []
        for portion in portions:
            mean_ns = portion.model.work(portion.rate_per_s).mean_ns[share, cycle]
            batch = int(portion.model.batches[share, cycle]) * portion.demand.items
            busy = float(mean_ns / self.cycles_ns[cycle])
            replicas.append(Replica(portion.demand.model, portion.rate_per_s, batch, busy))
        return Lane(int(self._widths[share]), tuple(replicas), round(self.cycles_ns[cycle]))

    def _has_memory(self, demand: Demand) -> NDArray[np.bool_]:
        """Which devices have the model or the memory for it; shape (devices,)."""
        if not self.kind.memory_nbytes or not demand.memory_nbytes:
            return np.ones(self.devices, bool)
        found = self._free_memory >= demand.memory_nbytes
        found[self._homes.get(demand.model, [])] = True
        return np.asarray(found)
