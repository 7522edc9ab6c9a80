"""What the law of a compute model misses: caches, algorithms that change with the size, and how fast a device is today.

A Gaussian process on the logarithm of measured over law, in the logarithms (base 2) of the sizes: near what was
measured the prediction is what was measured, far away it is the law. Kernel ``exp(-distance / length)``. A place that
ran often is believed more: its noise is divided by the number of its runs.

References
----------
Rasmussen, Williams: Gaussian Processes for Machine Learning. MIT Press 2006; 5.4.2 for leaving one out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LENGTHS = (0.5, 1.0, 2.0, 4.0)
"""Octaves over which the correction carries, of which a fit chooses."""
NOISES = (0.02, 0.1, 0.5)
"""Variance of one run over that of the correction, of which a fit chooses."""


def similarity(places: Floats, others: Floats, length: float) -> Floats:
    """Kernel of the process.

    Parameters
    ----------
    places, others : arrays of shape (count, sizes) and (others, sizes)
        Logarithms (base 2) of sizes.
    length : float, octaves

    Returns
    -------
    array of shape (count, others)
    """
    apart = places[:, None, :] - others[None, :, :]
    similar: Floats = np.exp(np.sqrt(np.sum(apart**2, axis=2)) / -length)
    return similar


def solve(places: Floats, logs: Floats, runs: Floats, length: float, noise: float) -> Floats:
    """Weights of the measured places: the correction elsewhere is ``similarity(elsewhere, places) @ weights``.

    Parameters
    ----------
    places : array of shape (count, sizes)
    logs : array of shape (count,)
        Logarithm of measured over law.
    runs : array of shape (count,)
        How often each was measured.
    length, noise : float
    """
    return np.asarray(np.linalg.solve(_covariance(places, runs, length, noise), logs), np.float64)


def left_out(places: Floats, logs: Floats, runs: Floats, length: float, noise: float) -> Floats:
    """For each place what a process without it predicts there, minus what was measured; as logarithms."""
    inverse = np.linalg.inv(_covariance(places, runs, length, noise))
    return np.asarray(-(inverse @ logs) / np.diag(inverse), np.float64)


def choose(places: Floats, logs: Floats, runs: Floats) -> tuple[float, float]:
    """Choose length and noise by the error of leaving one out; a length of 0 is no correction."""
    best, least = (0.0, NOISES[0]), float(np.mean(np.abs(logs)))
    for length in LENGTHS:
        for noise in NOISES:
            error = float(np.mean(np.abs(left_out(places, logs, runs, length, noise))))
            if error < least * 0.999:
                best, least = (length, noise), error
    return best


def _covariance(places: Floats, runs: Floats, length: float, noise: float) -> Floats:
    return similarity(places, places, length) + np.diag(noise / runs)
