"""What a user may choose about a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from polymux.core.errors import InvalidRequest
from polymux.profiling.confidence import CONFIDENCES

BATCHES = (1, 2, 4, 8, 16)
MOST_BATCH = 4096
MIN_REPEATS = 10


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """How much to measure.

    Parameters
    ----------
    batches : tuple of int
        Ascending.
    units : tuple of int
        Shares to measure, in compute units; empty: every one that the device offers.
    confidence : float
        Of the interval of each median.
    precision : float
        A place is measured until half of the interval is at most this part of the median.
    min_repeats, max_repeats : int
    place_s : float
        Longest time for one place of the grid after the least number of repeats, in s.
    batch_s : float
        Batches that would take longer than this are left out, in s.
    again : bool
        Measure also what the store has.

    Raises
    ------
    InvalidRequest
        If a number cannot be.
    """

    batches: tuple[int, ...] = BATCHES
    units: tuple[int, ...] = ()
    confidence: float = 0.95
    precision: float = 0.03
    min_repeats: int = MIN_REPEATS
    max_repeats: int = 1000
    place_s: float = 3.0
    batch_s: float = 5.0
    again: bool = False

    def __post_init__(self) -> None:
        for name, axis in (("batches", self.batches), ("units", self.units or (1,))):
            if not axis or axis[0] < 1 or any(b <= a for a, b in pairwise(axis)) or axis[-1] > MOST_BATCH:
                raise InvalidRequest(
                    f"{name} {axis}: give different numbers from 1 to {MOST_BATCH}, ascending"
                )
        if self.confidence not in CONFIDENCES:
            raise InvalidRequest(
                f"confidence {self.confidence}: give one of {', '.join(map(str, CONFIDENCES))}"
            )
        if not 0 < self.precision < 1:
            raise InvalidRequest(
                f"precision {self.precision}: give a part of the median between 0 and 1, such as 0.03"
            )
        if not 8 <= self.min_repeats <= self.max_repeats:
            raise InvalidRequest(
                f"repeats from {self.min_repeats} to {self.max_repeats}: give at least 8, and no less at most than at"
                " least"
            )
        if not (self.place_s > 0 and self.batch_s > 0):
            raise InvalidRequest(f"times of {self.place_s} s and {self.batch_s} s: give more than 0")
