"""How long a unit takes for a piece of an operation: a law, corrected by what ran, and refreshed by every run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import log, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec import correction
from polymux.perfmodel.coexec.features import Features, Sample
from polymux.perfmodel.coexec.law import law_terms, refit_law

Floats = NDArray[np.float64]

WINDOW = 15
"""Runs of a place that are kept; the median of so many follows a lasting change after eight."""
MOST_PLACES = 64
SAME = 0.03
"""Octaves by which sizes differ that count as the same place: 2 %."""
_SUSPICIOUS = 0.25
"""A first run that differs by more from what was predicted (as a logarithm) has to be confirmed by a second one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Runs of about the same sizes.

    Parameters
    ----------
    features : Features
    seconds : tuple of float, s
        The last runs, oldest first.
    """

    features: Features
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Median of the runs, in s: one spike, and one wrong clock, move nothing. Of two the older one counts."""
        if len(self.seconds) == 2:
            return self.seconds[0]
        return sorted(self.seconds)[(len(self.seconds) - 1) // 2]


@dataclass(frozen=True, slots=True)
class FitErrors:
    """How far off a model is at sizes that it was not told, found by leaving each place out.

    Parameters
    ----------
    rmse_s : float, s
        Root of the mean square error.
    mape : float
        Mean absolute error, relative: 0.03 is 3 %.
    p95 : float
        Absolute error that 95 % of the places do not exceed, relative.
    places : int
        So many.
    """

    rmse_s: float
    mape: float
    p95: float
    places: int


@dataclass(frozen=True, slots=True)
class ComputeModel:
    """Time of pieces of one operation on one unit.

    Parameters
    ----------
    law : tuple of float
        Seconds; seconds per operation; and for each size, seconds per (operation / size). The last ones may be left
        out.
    tile : tuple of int
        For each size what the unit pads it to a multiple of; empty: nothing.
    places : tuple of Place
        What ran, the latest last; at most 64.
    length : float, octaves
        Over which a measured place carries; 0: not at all.
    noise : float
        Variance of one run over that of the correction.

    Raises
    ------
    InvalidRequest
        If the law has no positive coefficient, or a negative one, or places have different numbers of sizes.

    Notes
    -----
    A prediction takes some 15 us, for one piece or for a dozen together; `observe` some 0.1 ms.
    """

    law: tuple[float, ...]
    tile: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()
    length: float = 1.0
    noise: float = 0.1
    _at: Floats = field(init=False, repr=False, compare=False)
    _weights: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.law) < 2 or min(self.law) < 0 or not 0 < sum(self.law) < np.inf:
            raise InvalidRequest(
                f"law of a compute model: {self.law}; give two or more coefficients of 0 or more, one above 0"
            )
        if len({len(place.features.sizes) for place in self.places}) > 1:
            raise InvalidRequest("places of a compute model have different numbers of sizes; give the same")
        at, weights = np.zeros((0, 0)), np.zeros(0)
        if self.places and self.length:
            at = np.log2([place.features.sizes for place in self.places])
            runs = np.array([len(place.seconds) for place in self.places], np.float64)
            weights = correction.solve(at, self._logs(), runs, self.length, self.noise)
        object.__setattr__(self, "_at", at)
        object.__setattr__(self, "_weights", weights)

    def predict(self, features: Features) -> float:
        """Time of a piece, in s.

        Raises
        ------
        InvalidRequest
            If it has another number of sizes than what ran.
        """
        return float(self.predict_many(np.array([features.work]), np.array([features.sizes]))[0])

    def predict_many(self, work: Floats, sizes: Floats) -> Floats:
        """Times of pieces, in s.

        Parameters
        ----------
        work : array of shape (count,), operations
        sizes : array of shape (count, sizes)

        Returns
        -------
        array of shape (count,)

        Raises
        ------
        InvalidRequest
            If they have another number of sizes than what ran.
        """
        seconds = self._by_law(work, sizes)
        if len(self._weights):
            if sizes.shape[1] != self._at.shape[1]:
                raise InvalidRequest(
                    f"a piece with {sizes.shape[1]} sizes; this model was made from pieces with {self._at.shape[1]}"
                )
            seconds = seconds * np.exp(
                correction.similarity(np.log2(sizes), self._at, self.length) @ self._weights
            )
        return seconds

    def observe(self, features: Features, seconds: float) -> ComputeModel:
        """Return the model that knows of this run, too; see `observe_all`."""
        return self.observe_all([Sample(features, seconds)])

    def observe_all(self, runs: Sequence[Sample]) -> ComputeModel:
        """Return the model that knows of these runs, too.

        Parameters
        ----------
        runs : sequence of Sample
            In the order in which they ran.

        Raises
        ------
        InvalidRequest
            If a piece has another number of sizes.

        Notes
        -----
        What counts of a place is the median of its last 15 runs. A first run at a place that differs by more than a
        quarter from the prediction counts only when a second one confirms it.
        """
        places = list(self.places)
        for run in runs:
            known = _find(places, run.features)
            if known is None:
                predicted = self.predict(run.features)
                doubtful = abs(log(run.seconds / predicted)) > _SUSPICIOUS
                places.append(Place(run.features, (predicted, run.seconds) if doubtful else (run.seconds,)))
            else:
                old = places.pop(known)
                seconds = self._scaled(old.features, run.features, run.seconds)
                places.append(Place(old.features, (*old.seconds, seconds)[-WINDOW:]))
        return replace(self, places=tuple(places[-MOST_PLACES:]), length=self.length or 1.0)

    @property
    def errors(self) -> FitErrors | None:
        """How far off the model is where it was not measured; None with fewer than three places.

        Notes
        -----
        Fits the law again for each place: some 10 ms.
        """
        if len(self.places) < 3:
            return None
        measured = np.array([place.median_s for place in self.places])
        predicted = np.array([self._without(left) for left in range(len(self.places))])
        apart = predicted / measured - 1
        return FitErrors(
            float(np.sqrt(np.mean((predicted - measured) ** 2))),
            float(np.mean(np.abs(apart))),
            float(np.quantile(np.abs(apart), 0.95)),
            len(measured),
        )

    def to_json(self) -> str:
        """Write it down."""
        return json.dumps(
            {
                "law": self.law,
                "tile": self.tile,
                "length": self.length,
                "noise": self.noise,
                "places": [(p.features.work, p.features.sizes, p.seconds) for p in self.places],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> ComputeModel:
        """Read what `to_json` wrote.

        Raises
        ------
        InvalidRequest
            If it is something else.
        """
        try:
            raw: dict[str, Any] = json.loads(text)
            places = tuple(
                Place(Features(float(work), tuple(map(float, sizes))), tuple(map(float, seconds)))
                for work, sizes, seconds in raw["places"]
            )
            return cls(
                tuple(map(float, raw["law"])),
                tuple(map(int, raw["tile"])),
                places,
                float(raw["length"]),
                float(raw["noise"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidRequest(f"this is no compute model ({error}): {text[:80]!r}") from error

    def _by_law(self, work: Floats, sizes: Floats) -> Floats:
        terms = law_terms(work, sizes, self.tile)
        used = min(terms.shape[1], len(self.law))
        seconds: Floats = terms[:, :used] @ np.array(self.law[:used])
        return seconds

    def _table(self) -> tuple[Floats, Floats]:
        return (
            np.array([place.features.work for place in self.places]),
            np.array([place.features.sizes for place in self.places]),
        )

    def _logs(self) -> Floats:
        logs: Floats = np.log([place.median_s for place in self.places]) - np.log(
            self._by_law(*self._table())
        )
        return logs

    def _scaled(self, place: Features, ran: Features, seconds: float) -> float:
        """What the run would have taken at the place's own sizes."""
        laws = self._by_law(np.array([place.work, ran.work]), np.array([place.sizes, ran.sizes]))
        return float(seconds * laws[0] / laws[1])

    def _without(self, left: int) -> float:
        """Prediction of a place by a model that never saw it, in s."""
        others = [place for number, place in enumerate(self.places) if number != left]
        work, sizes = self._table()
        terms = law_terms(work, sizes, self.tile)[:, : len(self.law)]
        rest = np.arange(len(self.places)) != left
        measured = np.array([place.median_s for place in others])
        law = refit_law(terms[rest], measured, np.array(self.law) > 0)
        model = replace(self, law=tuple(map(float, law)), places=tuple(others))
        return float(model.predict(self.places[left].features))


def _find(places: Sequence[Place], features: Features) -> int | None:
    """Number of the place that these sizes belong to."""
    if not places:
        return None
    if len(features.sizes) != len(places[0].features.sizes):
        raise InvalidRequest(
            f"a piece with {len(features.sizes)} sizes; this model was made from pieces with"
            f" {len(places[0].features.sizes)}"
        )
    wanted = [log2(size) for size in features.sizes]
    for number, place in enumerate(places):
        apart = 0.0
        for size, its in zip(place.features.sizes, wanted, strict=True):
            apart += abs(log2(size) - its)
            if apart > SAME:
                break
        else:
            return number
    return None


def constant_rate(operations_per_s: float, launch_s: float = 0.0) -> ComputeModel:
    """Model of a unit that is as fast at every size.

    Parameters
    ----------
    operations_per_s : float, operations/s
    launch_s : float, s
        Of every piece, besides.

    Raises
    ------
    InvalidRequest
        If the rate is not positive, or the launch is negative.
    """
    if not 0 < operations_per_s < np.inf or not 0 <= launch_s < np.inf:
        raise InvalidRequest(
            f"a rate of {operations_per_s} operations/s and a launch of {launch_s} s; give a positive rate and a launch"
            " of 0 or more"
        )
    return ComputeModel((launch_s, 1 / operations_per_s))
