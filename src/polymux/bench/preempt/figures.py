"""From rounds to results: percentiles of each round, medians over rounds, and whether these are steady."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

STEADY = 0.05
"""Most that one more round may move a median."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one configuration came to, in one round or as medians over rounds.

    Attributes
    ----------
    p50_ms, p99_ms : float, optional
        Of the requests, from when each was due; None: there were none.
    train_steps_per_s : float, optional
        None: there was no training.
    wait_p99_ms : float, optional
        How long inference waited for the cores; None where it does not wait for anybody to let go of them.
    """

    p50_ms: float | None = None
    p99_ms: float | None = None
    train_steps_per_s: float | None = None
    wait_p99_ms: float | None = None

    def values(self) -> tuple[float | None, ...]:
        """All of them."""
        return self.p50_ms, self.p99_ms, self.train_steps_per_s, self.wait_p99_ms


Round = Mapping[str, Figures]
"""By the name of the configuration."""


def percentile_ms(times_ns: Sequence[int], percent: float) -> float | None:
    """Return a percentile of some times, in ms; None without any."""
    return float(np.percentile(np.array(times_ns), percent)) / 1e6 if times_ns else None


def steps_per_s(ends_ns: Sequence[int], start_ns: int, end_ns: int) -> float:
    """Count the steps between two moments, with parts of those that had begun before the one or ended after the other.

    Parameters
    ----------
    ends_ns : sequence of int
        When training began, and when each step ended.
    start_ns, end_ns : int
    """
    done = np.interp([start_ns, end_ns], ends_ns, np.arange(len(ends_ns)))
    return float(done[1] - done[0]) / (end_ns - start_ns) * 1e9


def medians(rounds: Sequence[Round]) -> dict[str, Figures]:
    """Take the median over rounds of each configuration's figures."""
    return {name: Figures(*map(_median, *(turn[name].values() for turn in rounds))) for name in rounds[0]}


def _median(*values: float | None) -> float | None:
    there = [value for value in values if value is not None]
    return median(there) if there else None


def steady(rounds: Sequence[Round]) -> bool:
    """Tell whether the last round moved no median by more than `STEADY`."""
    if len(rounds) < 3:
        return False
    before, after = medians(rounds[:-1]), medians(rounds)
    return all(
        old is None or new is None or abs(new - old) <= STEADY * old
        for name in after
        for old, new in zip(before[name].values()[:3], after[name].values()[:3], strict=True)
    )


def best_alone(found: Mapping[str, Figures], names: Sequence[str]) -> str:
    """Return which way of waiting is best when inference is alone: that with the lowest p99."""
    return min(names, key=lambda name: found[name].p99_ms or float("inf"))
