"""How sure a median is: its confidence interval from the order of the samples, whatever their distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

from polymux.core.errors import InvalidRequest

_EXACT = 400
"""Up to this many samples the binomial distribution is summed; above, its normal approximation serves."""
_QUANTILES = ((0.8, 1.2816), (0.9, 1.6449), (0.95, 1.96), (0.98, 2.3263), (0.99, 2.5758), (0.999, 3.2905))
CONFIDENCES = tuple(confidence for confidence, _ in _QUANTILES)


@dataclass(frozen=True, slots=True)
class Median:
    """A median with its confidence interval.

    Parameters
    ----------
    value, low, high : float
        In the samples' unit.
    """

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """The larger distance from the median to an end of the interval."""
        return max(self.high - self.value, self.value - self.low)


def median(samples: Sequence[float], confidence: float) -> Median | None:
    """Median with its interval; None with too few samples for that confidence.

    Parameters
    ----------
    samples : sequence of float
        In any order.
    confidence : float
        One of `CONFIDENCES`: 0.95.

    Raises
    ------
    InvalidRequest
        For another confidence.

    References
    ----------
    David, Nagaraja: Order Statistics, 2003, section 7.1: the interval between the r-th smallest and the r-th largest
    of n samples covers the median with probability 1 - 2 P(B(n, 1/2) < r).
    """
    rank = interval_rank(len(samples), confidence)
    if rank == 0:
        return None
    ordered = sorted(samples)
    middle = len(ordered) // 2
    value = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Median(value, ordered[rank - 1], ordered[-rank])


@lru_cache(maxsize=4096)
def interval_rank(count: int, confidence: float) -> int:
    """Largest r for which the interval between r-th smallest and r-th largest has the confidence; 0: there is none.

    Raises
    ------
    InvalidRequest
        For a confidence that is none of `CONFIDENCES`.
    """
    quantile = dict(_QUANTILES).get(confidence)
    if quantile is None:
        raise InvalidRequest(f"confidence {confidence}: give one of {', '.join(map(str, CONFIDENCES))}")
    if count > _EXACT:
        return int((count - quantile * count**0.5) / 2)
    outside, below = (1 - confidence) / 2 * 2**count, 0
    for rank in range(count // 2 + 1):
        below += comb(count, rank)
        if below > outside:
            return rank
    return count // 2
