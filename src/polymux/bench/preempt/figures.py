"""From rounds to results: percentiles of all requests, medians of the rest, and whether these are steady."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

STEADY = 0.05
"""Most that one more round may move a figure."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one configuration did in one round.

    Attributes
    ----------
    latencies_ns : sequence of int
        Of the requests, from when each was due.
    waits_ns : sequence of int
        How long inference waited for the cores, each time that it wanted them.
    train_steps_per_s : float, optional
        None: there was no training.
    wait_p99_ms : float, optional
        Of the waits, where it is a server that knows them.
    """

    latencies_ns: Sequence[int] = ()
    waits_ns: Sequence[int] = ()
    train_steps_per_s: float | None = None
    wait_p99_ms: float | None = None


Round = Mapping[str, Turn]
"""By the name of the configuration."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one configuration came to.

    Attributes
    ----------
    p50_ms, p99_ms : float, optional
        Of the requests of all rounds, from when each was due; None: there were none.
    train_steps_per_s : float, optional
        Median over rounds; None: there was no training.
    wait_p99_ms : float, optional
        How long inference waited for the cores; None where it does not wait for anybody to let go of them.
    requests : int
        Of all rounds: how many are behind the percentiles.
    """

    p50_ms: float | None = None
    p99_ms: float | None = None
    train_steps_per_s: float | None = None
    wait_p99_ms: float | None = None
    requests: int = 0


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


def figures(turns: Sequence[Turn]) -> Figures:
    """Put the rounds of a configuration together."""
    latencies = [time for turn in turns for time in turn.latencies_ns]
    waits = [time for turn in turns for time in turn.waits_ns]
    told = _median(turn.wait_p99_ms for turn in turns)
    return Figures(
        percentile_ms(latencies, 50),
        percentile_ms(latencies, 99),
        _median(turn.train_steps_per_s for turn in turns),
        percentile_ms(waits, 99) if told is None else told,
        len(latencies),
    )


def together(rounds: Sequence[Round]) -> dict[str, Figures]:
    """Put rounds together, configuration by configuration."""
    return {name: figures([turns[name] for turns in rounds]) for name in rounds[0]}


def _median(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return median(there) if there else None


def steady(rounds: Sequence[Round]) -> bool:
    """Tell whether the last round moved no figure of requests or training by more than `STEADY`."""
    if len(rounds) < 3:
        return False
    before, after = together(rounds[:-1]), together(rounds)
    return all(
        old is None or new is None or abs(new - old) <= STEADY * old
        for name in after
        for old, new in zip(_judged(before[name]), _judged(after[name]), strict=True)
    )


def _judged(found: Figures) -> tuple[float | None, ...]:
    return found.p50_ms, found.p99_ms, found.train_steps_per_s


def best_alone(found: Mapping[str, Figures], names: Sequence[str]) -> str:
    """Return which way of waiting is best when inference is alone: that with the lowest p99."""
    return min(names, key=lambda name: found[name].p99_ms or float("inf"))
