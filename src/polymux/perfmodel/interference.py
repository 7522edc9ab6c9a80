"""How much models slow each other down when they run on one device at the same time.

Shares divide compute units; caches and memory bandwidth stay common. The model: each neighbour puts a pressure on the
device in proportion to its share, and each model has a sensitivity to the sum,

    slowdown(a) = 1 + sensitivity(a) * sum over neighbours b of pressure(b) * share(b)

Two numbers for each model instead of one for each pair, so a few measured pairs tell about all. Where just that pair
was measured, its own number takes the place of the product: two models that both need the cache may disturb each other
more than their numbers tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest

Floats = NDArray[np.float64]
_ROUNDS = 300
_STEADY = 1e-7
"""Change of all predictions in a round after which there is no further one."""
_PRIOR = 1e-4
"""Weight with which a number that the observations leave open is drawn to the mean of the others."""


@dataclass(frozen=True, slots=True)
class CoLocation:
    """A model measured beside others.

    Parameters
    ----------
    model : str
    neighbours : tuple of (str, float)
        Models that ran at the same time all along, and which part of the device each had, 0 to 1.
    slowdown : float
        Its time over its time alone on the same share.

    Raises
    ------
    InvalidRequest
        If `slowdown` is not positive, or a share outside 0 to 1.
    """

    model: str
    neighbours: tuple[tuple[str, float], ...]
    slowdown: float

    def __post_init__(self) -> None:
        if not self.slowdown > 0 or any(not 0 < share <= 1 for _, share in self.neighbours):
            raise InvalidRequest(
                f"co-location of {self.model} with {self.neighbours}: slowdown {self.slowdown}; give a slowdown above 0"
                " and shares above 0 and up to 1"
            )


@dataclass(frozen=True, slots=True)
class Interference:
    """Sensitivities and pressures.

    Parameters
    ----------
    sensitivity, pressure : mapping of str to float
        By model, 0 or more. A model that is not in them has the mean of those that are; without any sensitivity there
        is no interference.
    left_out : tuple of float
        For each observation what a fit without it predicts, over what was measured, minus 1. Empty with fewer than
        three: how far to trust what is said of models that were not measured side by side.
    pairs : mapping of (str, str) to float
        By model and neighbour, in place of sensitivity times pressure.

    Raises
    ------
    InvalidRequest
        If a number is negative or not finite.
    """

    sensitivity: Mapping[str, float] = field(default_factory=dict)
    pressure: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[float, ...] = ()
    pairs: Mapping[tuple[str, str], float] = field(default_factory=dict)
    _means: tuple[float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        told: tuple[tuple[str, Mapping[Any, float]], ...] = (
            ("sensitivity", self.sensitivity),
            ("pressure", self.pressure),
            ("pairs", self.pairs),
        )
        for name, numbers in told:
            if not all(0 <= number < inf for number in numbers.values()):
                raise InvalidRequest(f"interference: {name} is {dict(numbers)}; give numbers of 0 or more")
        means = tuple(sum(n.values()) / max(1, len(n)) for n in (self.sensitivity, self.pressure))
        object.__setattr__(self, "_means", means)

    def slowdown(self, model: str, neighbours: Iterable[tuple[str, float]]) -> float:
        """Predict the time of a model beside others over its time alone, at least 1.

        Parameters
        ----------
        model : str
        neighbours : iterable of (str, float)
            Models that run at the same time, and which part of the device each has, 0 to 1.
        """
        if not self.sensitivity:
            return 1.0
        mean_sensitivity, mean_pressure = self._means
        sensitivity = self.sensitivity.get(model, mean_sensitivity)
        slowdown = 1.0
        for name, share in neighbours:
            effect = self.pairs.get((model, name))
            if effect is None:
                effect = sensitivity * self.pressure.get(name, mean_pressure)
            slowdown += effect * share
        return slowdown

    @property
    def largest_error(self) -> float | None:
        """Largest absolute error of an observation left out, relative; None with fewer than three."""
        return max(map(abs, self.left_out), default=None)


NO_INTERFERENCE = Interference()
"""Until it is measured."""


def fit_interference(observations: Sequence[CoLocation]) -> Interference:
    """Fit sensitivities and pressures to measured co-locations, by least squares.

    Parameters
    ----------
    observations : sequence of CoLocation
        One or more.

    Raises
    ------
    InvalidRequest
        If there are none, or all are without neighbours.

    Notes
    -----
    Alternates between the two, each step the exact minimum; the pressures are scaled to a mean of 1. A measured
    slowdown below 1 counts as noise around 1. A number that the observations do not determine is drawn to the mean of
    the others.

    References
    ----------
    Mars et al.: Bubble-Up. MICRO 2011 (sensitivity and pressure). Choi et al.: gpulet. USENIX ATC 2022 (a linear model
    of interference between the shares of a GPU).
    """
    if not any(observation.neighbours for observation in observations):
        raise InvalidRequest(
            f"interference from {len(observations)} observations without neighbours; measure models beside each other"
        )
    left_out = []
    if len(observations) >= 3:
        for at, observation in enumerate(observations):
            others = [*observations[:at], *observations[at + 1 :]]
            predicted = _fit(others).slowdown(observation.model, observation.neighbours)
            left_out.append(predicted / observation.slowdown - 1)
    fitted = _fit(observations)
    return Interference(fitted.sensitivity, fitted.pressure, tuple(left_out), fitted.pairs)


def _fit(observations: Sequence[CoLocation]) -> Interference:
    sensitive = sorted({observation.model for observation in observations})
    pressing = sorted({name for observation in observations for name, _ in observation.neighbours})
    if not pressing:
        return NO_INTERFERENCE
    rows = np.array([sensitive.index(observation.model) for observation in observations])
    shares = np.zeros((len(observations), len(pressing)))
    for at, observation in enumerate(observations):
        for name, share in observation.neighbours:
            shares[at, pressing.index(name)] += share
    extra = np.array([observation.slowdown - 1 for observation in observations])
    sensitivity, pressure = np.ones(len(sensitive)), np.ones(len(pressing))
    predicted = np.full(len(rows), np.inf)
    for _ in range(_ROUNDS):
        sensitivity = _best_sensitivity(rows, shares @ pressure, extra, sensitivity)
        pressure = _best_pressure(shares * sensitivity[rows, None], extra, pressure)
        scale = float(pressure.mean()) or 1.0
        before = predicted
        pressure, sensitivity = pressure / scale, sensitivity * scale
        predicted = sensitivity[rows] * (shares @ pressure)
        if np.abs(predicted - before).max() < _STEADY:
            break
    return Interference(
        dict(zip(sensitive, sensitivity.tolist(), strict=True)),
        dict(zip(pressing, pressure.tolist(), strict=True)),
        (),
        _measured_pairs(observations),
    )


def _measured_pairs(observations: Sequence[CoLocation]) -> dict[tuple[str, str], float]:
    """Effect of each neighbour that was measured as the only one: a line through the origin over its share."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for observation in observations:
        if len(observation.neighbours) == 1:
            ((name, share),) = observation.neighbours
            over, under = sums.get((observation.model, name), (0.0, 0.0))
            extra = observation.slowdown - 1
            sums[observation.model, name] = (over + extra * share, under + share * share)
    return {pair: max(0.0, over / under) for pair, (over, under) in sums.items()}


def _best_sensitivity(rows: NDArray[np.intp], pressed: Floats, extra: Floats, now: Floats) -> Floats:
    """Each sensitivity for given pressures: a line through the origin."""
    over = np.bincount(rows, pressed * extra, len(now)) + _PRIOR * now.mean()
    best: Floats = np.maximum(0, over / (np.bincount(rows, pressed**2, len(now)) + _PRIOR))
    return best


def _best_pressure(effect: Floats, extra: Floats, now: Floats) -> Floats:
    """All pressures for given sensitivities, one after the other."""
    pressure, mean = now.copy(), float(now.mean())
    for at in range(len(pressure)):
        rest = extra - effect @ pressure + effect[:, at] * pressure[at]
        over = float(effect[:, at] @ rest) + _PRIOR * mean
        pressure[at] = max(0.0, over / (float(effect[:, at] @ effect[:, at]) + _PRIOR))
    return pressure
