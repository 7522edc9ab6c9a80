"""Energy: power times time, with the power of a device between idle and busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.device_facts import DeviceFacts

_SECOND_NS = 1e9
_LEAST_SPREAD = 0.01
"""Utilisations that are closer tell nothing about how power depends on them."""


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Electrical power of a device: `idle_w` always, and up to `busy_w` as its compute units are used.

    Parameters
    ----------
    idle_w, busy_w : float, W

    Raises
    ------
    InvalidRequest
        If not ``0 <= idle_w <= busy_w``.

    Notes
    -----
    Linear in the utilisation. What a data sheet gives as the board's power is a limit: a device busy with small kernels
    stays below it, so `of` bounds the energy from above. `fit_power` takes measurements instead.

    References
    ----------
    Fan, Weber, Barroso: Power Provisioning for a Warehouse-sized Computer. ISCA 2007 (linear model of power).
    """

    idle_w: float
    busy_w: float

    def __post_init__(self) -> None:
        if not 0 <= self.idle_w <= self.busy_w or not isfinite(self.busy_w):
            raise InvalidRequest(f"power: idle {self.idle_w} W, busy {self.busy_w} W; give 0 <= idle <= busy")

    @classmethod
    def of(cls, device: DeviceFacts) -> PowerModel:
        """Take it from the facts of a kind of device."""
        return cls(device.idle_watts, device.max_watts)

    def power_w(self, utilisation: float) -> float:
        """Power while this part of the compute units is used, in W.

        Raises
        ------
        InvalidRequest
            If `utilisation` is not within 0 to 1.
        """
        if not 0 <= utilisation <= 1:
            raise InvalidRequest(f"power at a utilisation of {utilisation}; give 0 to 1")
        return self.idle_w + (self.busy_w - self.idle_w) * utilisation

    def energy_j(self, time_ns: int, utilisation: float) -> float:
        """Energy of a device over a time in which on average this part of its units was used, in J.

        Raises
        ------
        InvalidRequest
            If `utilisation` is not within 0 to 1.
        """
        return self.power_w(utilisation) * time_ns / _SECOND_NS

    def batch_energy_j(self, latency_ns: int, units: int, device_units: int) -> float:
        """Energy that a batch adds to an idle device, in J.

        Parameters
        ----------
        latency_ns : int, ns
        units, device_units : int
            Compute units of the batch and of the whole device.

        Raises
        ------
        InvalidRequest
            If it is given more units than there are.
        """
        return self.energy_j(latency_ns, units / device_units) - self.energy_j(latency_ns, 0)


@dataclass(frozen=True, slots=True)
class FittedPower:
    """A power model fitted to samples, with its error.

    Parameters
    ----------
    power : PowerModel
    largest_error_w : float, W
        Largest absolute difference between a sample and the model.
    """

    power: PowerModel
    largest_error_w: float


def fit_power(samples: Sequence[tuple[float, float]]) -> FittedPower:
    """Fit idle and busy power to samples, by least squares.

    Parameters
    ----------
    samples : sequence of (float, float)
        Utilisation of 0 to 1, and power in W; at two utilisations or more that are at least 0.01 apart.

    Returns
    -------
    FittedPower
        Idle power is at least 0, and busy power at least idle power.

    Raises
    ------
    InvalidRequest
        If the utilisations are too close, one is outside 0 to 1, or a power is negative.
    """
    table = np.array(samples, np.float64).reshape(len(samples), 2)
    if not len(table) or table.min() < 0 or table[:, 0].max() > 1 or not np.isfinite(table).all():
        raise InvalidRequest(
            f"power from the {len(samples)} samples {list(samples)}; give utilisations of 0 to 1 and powers of"
            " 0 W or more"
        )
    utilisation, watts = table.T
    if np.ptp(utilisation) < _LEAST_SPREAD:
        raise InvalidRequest(
            f"power from samples at utilisations of {utilisation.min()} to {utilisation.max()}; measure at two that are"
            f" at least {_LEAST_SPREAD} apart"
        )
    apart = utilisation - utilisation.mean()
    slope = float(apart @ watts / (apart @ apart))
    idle = float(watts.mean() - slope * utilisation.mean())
    if idle < 0:  # the best line through the origin
        idle, slope = 0.0, float(utilisation @ watts / (utilisation @ utilisation))
    elif slope < 0:
        idle, slope = float(watts.mean()), 0.0
    power = PowerModel(idle, idle + slope)
    errors = [abs(power.power_w(part) - measured) for part, measured in samples]
    return FittedPower(power, max(errors))


def counted_energy_j(before: int, after: int, wraps_at: int, joules_per_count: float = 1e-6) -> float:
    """Energy between two readings of a counter that wraps around at most once, in J.

    Parameters
    ----------
    before, after : int, counts
    wraps_at : int, counts
        After this value the counter is 0 again (RAPL: ``max_energy_range_uj``).
    joules_per_count : float, J
        1e-6 for RAPL, 1e-3 for NVML.

    Raises
    ------
    InvalidRequest
        If a reading is outside 0 to `wraps_at`.

    References
    ----------
    Linux kernel: power capping framework, ``energy_uj`` and ``max_energy_range_uj``.
    """
    if not (0 <= before <= wraps_at and 0 <= after <= wraps_at):
        raise InvalidRequest(f"energy counter went from {before} to {after}; it counts from 0 to {wraps_at}")
    counts = after - before if after >= before else after + wraps_at + 1 - before
    return counts * joules_per_count
