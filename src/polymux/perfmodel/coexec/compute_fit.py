"""Fits a compute model to measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.coexec import correction
from polymux.perfmodel.coexec.compute import MOST_PLACES, SAME, WINDOW, ComputeModel, Place
from polymux.perfmodel.coexec.features import Features, Sample
from polymux.perfmodel.coexec.law import fit_law, law_terms


def fit_compute(samples: Sequence[Sample], *, tile: tuple[int, ...] = ()) -> ComputeModel:
    """Fit a model to measured runs.

    Parameters
    ----------
    samples : sequence of Sample
        One or more, all with as many sizes; of runs repeated at a place the median counts. Ten to forty places over
        the range of interest are good.
    tile : tuple of int
        For each size what the unit pads it to a multiple of; 0 and 1: nothing.

    Returns
    -------
    ComputeModel
        Its `errors` tell how well places are predicted that it was not told.

    Raises
    ------
    InvalidRequest
        If there are no samples, their numbers of sizes differ, or `tile` has another number.

    Notes
    -----
    Some milliseconds. Whether there is a correction, how far it carries and how much of it is noise is chosen by
    leaving one place out; with fewer than four places it is as `ComputeModel` has it.
    """
    places = _gather(samples)
    sizes = np.array([place.features.sizes for place in places])
    if tile and len(tile) != sizes.shape[1]:
        raise InvalidRequest(f"tile {tile} for pieces with {sizes.shape[1]} sizes; give one number for each")
    terms = law_terms(np.array([place.features.work for place in places]), sizes, tile)
    measured = np.array([place.median_s for place in places])
    law = fit_law(terms, measured)
    model = ComputeModel(tuple(map(float, law)), tile, tuple(places))
    if len(places) < 4:
        return model
    runs = np.array([len(place.seconds) for place in places], np.float64)
    logs = np.log(measured) - np.log(terms @ law)
    length, noise = correction.choose(np.log2(sizes), logs, runs) if sizes.shape[1] else (0.0, model.noise)
    return replace(model, length=length, noise=noise)


def _gather(samples: Sequence[Sample]) -> list[Place]:
    """Put runs of the same sizes together; of too many places keep the last."""
    if not samples:
        raise InvalidRequest("compute model: there are no samples; measure at least one run")
    counts = {len(sample.features.sizes) for sample in samples}
    if len(counts) > 1:
        raise InvalidRequest(f"compute model: samples have {sorted(counts)} sizes; give as many in all")
    found: list[tuple[Features, list[float]]] = []
    for sample in samples:
        for features, seconds in found:
            if _distance(features, sample.features) <= SAME / 10:
                seconds.append(sample.seconds)
                break
        else:
            found.append((sample.features, [sample.seconds]))
    return [Place(features, tuple(seconds[-WINDOW:])) for features, seconds in found[-MOST_PLACES:]]


def _distance(one: Features, other: Features) -> float:
    return (
        float(np.abs(np.log2(one.sizes) - np.log2(other.sizes)).sum())
        if one.sizes
        else abs(float(np.log2(one.work / other.work)))
    )
