"""When requests arrive: processes as values, which give arrays of times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest

Times = NDArray[np.int64]
"""Times in ns, ascending."""

SECOND_NS = 1_000_000_000

_GREATEST = 2**63 - 1


class Arrivals(Protocol):
    """An open-loop process: requests come whether or not earlier ones have been answered."""

    @property
    def mean_rate_per_s(self) -> float:
        """Requests per second in the long run; 0: not known beforehand."""
        ...

    def times_ns(self, rng: np.random.Generator, duration_ns: int) -> Times:
        """All arrivals in ``[0, duration_ns)``, ascending, in ns."""
        ...

    def scaled(self, factor: float) -> Arrivals:
        """Return the same process at `factor` times its rate; `factor` is more than 0."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Arrivals with equal distances, the first at a random part of the first distance.

    Parameters
    ----------
    rate_per_s : float
        0 or more.
    """

    rate_per_s: float

    def __post_init__(self) -> None:
        _check_rate("uniform", self.rate_per_s)

    @property
    def mean_rate_per_s(self) -> float:
        """Requests per second."""
        return self.rate_per_s

    def scaled(self, factor: float) -> Uniform:
        """Return the same process at another rate."""
        return Uniform(self.rate_per_s * factor)

    def times_ns(self, rng: np.random.Generator, duration_ns: int) -> Times:
        """All arrivals in ``[0, duration_ns)``."""
        if not self.rate_per_s:
            return np.empty(0, np.int64)
        distance_ns = SECOND_NS / self.rate_per_s
        first = rng.random() * distance_ns
        count = max(0, int(np.ceil((duration_ns - first) / distance_ns)))
        times = (first + distance_ns * np.arange(count)).astype(np.int64)
        return times[times < duration_ns]


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals: distances are exponentially distributed.

    Parameters
    ----------
    rate_per_s : float
        0 or more.
    """

    rate_per_s: float

    def __post_init__(self) -> None:
        _check_rate("Poisson", self.rate_per_s)

    @property
    def mean_rate_per_s(self) -> float:
        """Requests per second in the long run."""
        return self.rate_per_s

    def scaled(self, factor: float) -> Poisson:
        """Return the same process at another rate."""
        return Poisson(self.rate_per_s * factor)

    def times_ns(self, rng: np.random.Generator, duration_ns: int) -> Times:
        """All arrivals in ``[0, duration_ns)``."""
        count = int(rng.poisson(self.rate_per_s * duration_ns / SECOND_NS))
        return np.sort(rng.integers(0, duration_ns, count, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Bursty:
    """A Markov-modulated Poisson process: states with a rate each, left after exponentially distributed times.

    Each state is followed by the next, the last by the first.

    Parameters
    ----------
    rates_per_s : tuple of float
        Of each state, 0 or more.
    stay_s : tuple of float
        Mean time in each state, more than 0.

    References
    ----------
    Fischer and Meier-Hellstern, The Markov-modulated Poisson process (MMPP) cookbook, Performance Evaluation 18 (1993).
    """

    rates_per_s: tuple[float, ...]
    stay_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rates_per_s or len(self.rates_per_s) != len(self.stay_s):
            raise InvalidRequest(
                f"bursty arrivals: {len(self.rates_per_s)} rates and {len(self.stay_s)} times; give one time for each"
                " rate, and at least one"
            )
        for rate in self.rates_per_s:
            _check_rate("bursty", rate)
        for stay in self.stay_s:
            if not 0 < stay < float("inf"):
                raise InvalidRequest(f"bursty arrivals: a mean time is {stay} s; give more than 0")

    @property
    def mean_rate_per_s(self) -> float:
        """Requests per second in the long run."""
        pairs = zip(self.rates_per_s, self.stay_s, strict=True)
        return sum(rate * stay for rate, stay in pairs) / sum(self.stay_s)

    def scaled(self, factor: float) -> Bursty:
        """Return the same process with other rates in its states."""
        return Bursty(tuple(rate * factor for rate in self.rates_per_s), self.stay_s)

    def times_ns(self, rng: np.random.Generator, duration_ns: int) -> Times:
        """All arrivals in ``[0, duration_ns)``; the first state is drawn by the time spent in each."""
        total_s = sum(self.stay_s)
        state = int(rng.choice(len(self.stay_s), p=[stay / total_s for stay in self.stay_s]))
        at, pieces = 0.0, [np.empty(0, np.int64)]
        while at < duration_ns:
            end = min(at + rng.exponential(self.stay_s[state]) * SECOND_NS, float(duration_ns))
            count = int(rng.poisson(self.rates_per_s[state] * (end - at) / SECOND_NS))
            pieces.append(np.sort(at + rng.random(count) * (end - at)).astype(np.int64))
            at, state = end, (state + 1) % len(self.stay_s)
        return np.concatenate(pieces)


@dataclass(frozen=True, slots=True)
class Timestamps:
    """A trace: the time of each arrival.

    Parameters
    ----------
    times : sequence of int, ns
        Ascending, from 0; what lies after the end of the simulation does not arrive.
    """

    times: Sequence[int] | Times

    def __post_init__(self) -> None:
        times = _row("timestamps", self.times)
        if times[0] < 0 or (np.diff(times) < 0).any():
            at = 0 if times[0] < 0 else int(np.argmax(np.diff(times) < 0)) + 1
            raise InvalidRequest(
                f"trace: timestamp {at + 1} is {times[at]} ns; give them ascending, from 0 on"
            )

    @property
    def mean_rate_per_s(self) -> float:
        """Requests per second from 0 to the last one."""
        times = np.asarray(self.times, np.int64)
        return float(len(times) * SECOND_NS / max(1, times[-1]))

    def scaled(self, factor: float) -> Timestamps:
        """Return the same trace played faster."""
        return Timestamps((np.asarray(self.times, np.int64) / factor).astype(np.int64))

    def times_ns(self, rng: np.random.Generator, duration_ns: int) -> Times:  # noqa: ARG002
        """All arrivals in ``[0, duration_ns)``."""
        times = np.asarray(self.times, np.int64)
        return times[times < duration_ns]


@dataclass(frozen=True, slots=True)
class Counts:
    """A trace: how many arrive in each second (or other bin), at random within it; it is repeated when it ends.

    Parameters
    ----------
    counts : sequence of int
        0 or more.
    bin_ns : int
        Length of a bin.
    """

    counts: Sequence[int]
    bin_ns: int = SECOND_NS

    def __post_init__(self) -> None:
        counts = _row("counts", self.counts)
        if counts.min() < 0 or self.bin_ns < 1:
            raise InvalidRequest(
                f"trace: the least count is {counts.min()}, a bin {self.bin_ns} ns; give 0 or more, and 1 or more"
            )

    @property
    def mean_rate_per_s(self) -> float:
        """Requests per second over the whole trace."""
        return float(sum(self.counts) * SECOND_NS / (len(self.counts) * self.bin_ns))

    def scaled(self, factor: float) -> Counts:
        """Return a trace whose counts follow the scaled ones, with no request lost or added by rounding in the sum."""
        sums = np.round(np.cumsum(np.asarray(self.counts, np.float64)) * factor).astype(np.int64)
        return Counts(tuple(np.diff(sums, prepend=0).tolist()), self.bin_ns)

    def times_ns(self, rng: np.random.Generator, duration_ns: int) -> Times:
        """All arrivals in ``[0, duration_ns)``."""
        bins = -(-duration_ns // self.bin_ns)
        counts = np.resize(np.asarray(self.counts, np.int64), bins)
        starts = np.repeat(np.arange(bins, dtype=np.int64) * self.bin_ns, counts)
        times = np.sort(starts + rng.integers(0, self.bin_ns, len(starts), dtype=np.int64))
        return times[times < duration_ns]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A fixed number of clients, each of which sends its next request a while after the answer to its last one.

    With many clients and no pause there is always a backlog.

    Parameters
    ----------
    clients : int
        1 or more.
    think_ns : int
        Mean of the exponentially distributed pause after an answer; 0: none. A refused client waits at least 1 ms,
        and until the time at which it was told to come back.
    """

    clients: int
    think_ns: int = 0

    def __post_init__(self) -> None:
        if self.clients < 1 or self.think_ns < 0:
            raise InvalidRequest(
                f"closed loop: {self.clients} clients, think_ns {self.think_ns}; give 1 or more, and 0 or more"
            )

    @property
    def mean_rate_per_s(self) -> float:
        """Not known beforehand: 0."""
        return 0.0

    def scaled(self, factor: float) -> ClosedLoop:
        """Return a loop with `factor` times the clients, at least one."""
        return ClosedLoop(max(1, round(self.clients * factor)), self.think_ns)

    def times_ns(self, rng: np.random.Generator, duration_ns: int) -> Times:
        """The first request of each client."""
        if not self.think_ns:
            return np.zeros(self.clients, np.int64)
        times = np.sort(rng.exponential(self.think_ns, self.clients).astype(np.int64))
        return times[times < duration_ns]


def _check_rate(what: str, rate_per_s: float) -> None:
    if not 0 <= rate_per_s < float("inf"):
        raise InvalidRequest(f"{what} arrivals: the rate is {rate_per_s} per second; give 0 or more")


def _row(what: str, values: Sequence[int] | Times) -> Times:
    """Take the numbers of a trace as what they are: one row of whole numbers, nothing cut off or rounded."""
    try:
        row = np.asarray(values)
    except ValueError:  # rows of different lengths
        raise InvalidRequest(
            f"trace: its {what} are no row of numbers; give one number after the other"
        ) from None
    if row.ndim != 1:
        raise InvalidRequest(f"trace: its {what} have the shape {row.shape}; give one row of numbers")
    if not row.size:
        raise InvalidRequest(f"trace: it has no {what}; give at least one")
    if row.dtype.kind not in "iu" or row.max() > _GREATEST:
        wrong = row.max() if row.dtype.kind in "iuf" else row[0]
        raise InvalidRequest(f"trace: {wrong} is none of its {what}; give whole numbers up to 2**63 - 1")
    return row.astype(np.int64)
