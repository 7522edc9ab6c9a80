"""Repeats one thing until its time is known well enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from polymux.core.errors import PolymuxError
from polymux.profiling.confidence import median
from polymux.profiling.options import ProfileOptions

WARM_UP_NS = 100_000_000
_LEAST_WARM_UP, _MOST_WARM_UP = 3, 50


class TooSlow(PolymuxError):
    """One run takes longer than the user would wait for.

    Parameters
    ----------
    seconds, limit_s : float
    """

    def __init__(self, seconds: float, limit_s: float) -> None:
        super().__init__(seconds, limit_s)
        self.seconds = seconds
        self.limit_s = limit_s

    def __str__(self) -> str:
        return f"one batch takes {self.seconds:.1f} s, more than {self.limit_s:g} s"


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took, warm-up not counted.

    Parameters
    ----------
    count : int
    median_ns, mean_ns, p95_ns, min_ns, half_width_ns : int
    is_precise : bool
        Whether the interval became as narrow as was asked for.
    """

    count: int
    median_ns: int
    mean_ns: int
    p95_ns: int
    min_ns: int
    half_width_ns: int
    is_precise: bool


def repeat(once: Callable[[], int], options: ProfileOptions) -> Times:
    """Run something again and again.

    Parameters
    ----------
    once : callable
        Does it and returns how long it took, in ns.
    options : ProfileOptions
        How precise, how often and how long.

    Returns
    -------
    Times

    Raises
    ------
    TooSlow
        If the first run takes longer than `options.batch_s`.

    Notes
    -----
    It warms up first: at least three runs, until they took 0.1 s together.
    """
    warm_up_ns = 0
    for number in range(_MOST_WARM_UP):
        taken = once()
        warm_up_ns += taken
        if number and taken > options.batch_s * 1e9:  # the first one also loads the model
            raise TooSlow(taken / 1e9, options.batch_s)
        if number + 1 >= _LEAST_WARM_UP and warm_up_ns >= WARM_UP_NS:
            break
    samples: list[int] = []
    total_ns, look_at = 0, options.min_repeats
    while True:
        taken = max(1, once())
        samples.append(taken)
        total_ns += taken
        if len(samples) < look_at:
            continue
        is_last = len(samples) >= options.max_repeats or total_ns >= options.place_s * 1e9
        found = median(samples, options.confidence)
        is_precise = found is not None and found.half_width <= options.precision * found.value
        if found is not None and (is_precise or is_last):
            break
        look_at = len(samples) + max(1, len(samples) // 10)
    ordered = sorted(samples)
    middle = round(found.value)
    return Times(
        len(samples),
        middle,
        round(total_ns / len(samples)),
        max(middle, ordered[ceil(0.95 * len(samples)) - 1]),
        ordered[0],
        round(found.half_width),
        is_precise,
    )
