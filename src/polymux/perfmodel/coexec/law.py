"""The law of a compute model: a launch, a time per operation, and a time for what is touched besides.

``t = c0 + c1 * work + sum_i c_(2+i) * work / size_i`` with coefficients that are not negative. For a matrix product
``work / m`` is proportional to the elements of B, ``work / n`` to those of A and ``work / k`` to those of the result:
what packing, reading and writing cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_MOST_TERMS = 4
_NO_GAIN = 0.98
"""Another term must bring the sum of squares down to less than this part."""


def law_terms(work: Floats, sizes: Floats, tile: Sequence[int] = ()) -> Floats:
    """Terms of the law.

    Parameters
    ----------
    work : array of shape (count,), operations
    sizes : array of shape (count, sizes)
    tile : sequence of int
        For each size what the unit pads it to a multiple of; 0 and 1: nothing.

    Returns
    -------
    array of shape (count, 2 + sizes)
    """
    for column, step in enumerate(tile):
        if step > 1:
            padded = np.ceil(sizes[:, column] / step) * step
            work = work * (padded / sizes[:, column])
    return np.concatenate([np.ones((len(work), 1)), work[:, None], work[:, None] / sizes], axis=1)


def fit_law(terms: Floats, seconds: Floats) -> Floats:
    """Fit coefficients by non-negative least squares of relative errors.

    Parameters
    ----------
    terms : array of shape (count, terms)
        The second one has to be positive: alone it is a law, a constant rate.
    seconds : array of shape (count,), s

    Returns
    -------
    array of shape (terms,)
        At most four are not 0. Of subsets of terms that fit alike, one with the fewest.
    """
    rows = terms / seconds[:, None]
    scale = np.sqrt(np.mean(rows**2, axis=0))
    scale[scale == 0] = 1.0
    rows = rows / scale
    best = np.zeros(terms.shape[1])
    best[1] = float(np.mean(seconds / terms[:, 1])) * scale[1]
    least = float(np.sum((rows @ best - 1) ** 2))
    for count in range(1, min(_MOST_TERMS, terms.shape[1], len(rows)) + 1):
        round_best, round_least = best, least * _NO_GAIN - 1e-15
        for chosen in combinations(range(terms.shape[1]), count):
            part = rows[:, chosen]
            found = np.linalg.lstsq(part, np.ones(len(rows)), rcond=None)[0]
            if np.all(found >= 0) and (rest := float(np.sum((part @ found - 1) ** 2))) < round_least:
                round_best, round_least = np.zeros(terms.shape[1]), rest
                round_best[list(chosen)] = found
        if round_best is not best:
            best, least = round_best, round_least
    law: Floats = best / scale
    return law


def refit_law(terms: Floats, seconds: Floats, support: NDArray[np.bool_]) -> Floats:
    """Fit again, with the same terms; one that would become negative is left at 0.

    Parameters
    ----------
    terms, seconds
        As for `fit_law`.
    support : array of bool, of shape (terms,)
        Which terms may be used.
    """
    rows = terms / seconds[:, None]
    support = support.copy()
    while support.any():
        found = np.linalg.lstsq(rows[:, support], np.ones(len(rows)), rcond=None)[0]
        if np.all(found >= 0):
            law = np.zeros(terms.shape[1])
            law[support] = found
            return law
        support[np.flatnonzero(support)[np.argmin(found)]] = False
    return fit_law(terms, seconds)
