"""How much of a lane's time a model takes, over the lane's width and the length of its cycle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polymux.perfmodel.capacity.demand import Demand, DeviceKind

Floats = NDArray[np.float64]

NS_PER_S = 1e9
_BISECTIONS = 24


@dataclass(frozen=True, slots=True)
class Work:
    """What a rate of requests takes of a lane.

    Parameters
    ----------
    mean_ns : array of float64, shape (shares, cycles), ns
        Time of batches in a cycle, on average; infinite where the deadline cannot be met.
    variance_ns2 : array of float64, shape (shares, cycles), ns squared
        Of that time.
    """

    mean_ns: Floats
    variance_ns2: Floats

    def load(self, cycles_ns: Floats, caution: float) -> Floats:
        """Part of the best cycle that is taken, by share; above 1 it does not fit. Shape (shares,)."""
        return lane_load(self.mean_ns, self.variance_ns2, cycles_ns, caution)


def lane_load(mean_ns: Floats, variance_ns2: Floats, cycles_ns: Floats, caution: float) -> Floats:
    """Part of a lane's best cycle that its work takes: the mean and `caution` standard deviations.

    Parameters
    ----------
    mean_ns, variance_ns2 : array of float64, shape (..., cycles)
    cycles_ns : array of float64, shape (cycles,), ns
    caution : float

    Returns
    -------
    array of float64, shape (...)
    """
    return np.asarray(((mean_ns + caution * np.sqrt(variance_ns2)) / cycles_ns).min(axis=-1))


class WorkModel:
    """The work of one model on one kind of device.

    A lane gives each of its models a turn per cycle of length D. A request waits at most D for the turn of its batch,
    which then runs for L(b): D + L(b) <= SLO. While it waits, no batch takes longer than D: L(b) <= D. The largest b
    that keeps both is the batch of this cycle. In D, n = rate x D items come, and take L(n), or n/b x L(b) when they
    are more than b, or n x L(1) when they are less than 1. The lane holds its models when this sums up to at most D.

    Parameters
    ----------
    demand : Demand
    kind : DeviceKind
        One of the demand's.
    cycles_ns : array of float64, shape (cycles,), ns
        The lengths of cycles that are considered, ascending.
    latencies_ns : array of float64, shape (shares, requests), ns
        From `LatencyTables`.
    total_per_s : float
        Requests per second of the model on all lanes. A router that sends them round hands each of k lanes every k-th:
        the variance over the mean is then the k-th part.

    References
    ----------
    Shen et al., Nexus: a GPU cluster engine for accelerating DNN-based video analysis, SOSP 2019, section 6.1: the duty
    cycle of a shared accelerator. Here the number of arrivals in a cycle also has a variance.
    """

    def __init__(
        self, demand: Demand, kind: DeviceKind, cycles_ns: Floats, latencies_ns: Floats, total_per_s: float
    ) -> None:
        self._dispersion = demand.dispersion
        self._total_per_s = total_per_s
        self._latencies_ns = latencies_ns
        self._cycles_ns = cycles_ns
        self._units = np.array(kind.shares, np.float64)
        limits = np.minimum(cycles_ns, demand.slo_ns - cycles_ns)
        found = [np.searchsorted(row, limits, side="right") for row in latencies_ns]
        self.batches = np.array(found, np.int64)
        """Largest batch in requests, shape (shares, cycles); 0 where not even one request can be in time."""

    @property
    def feasible(self) -> bool:
        """Whether a request can be in time on any share while others run."""
        return bool(self.batches.any())

    def work(self, rate_per_s: Floats | float) -> Work:
        """What a rate takes; the rate may have the shape (shares, cycles)."""
        n = rate_per_s * self._cycles_ns / NS_PER_S
        batch = np.maximum(self.batches, 1)
        m = np.clip(n, 1.0, batch)
        low = np.minimum(m.astype(np.int64), batch)
        high = np.minimum(low + 1, batch)
        rows = np.arange(len(self._latencies_ns))[:, None]
        first, second = self._latencies_ns[rows, low - 1], self._latencies_ns[rows, high - 1]
        each_ns = (first + (m - low) * (second - first)) / m
        mean = np.where(self.batches > 0, each_ns * n, np.inf)
        part = np.minimum(1.0, rate_per_s / self._total_per_s) if self._total_per_s else 1.0
        variance = np.where(self.batches > 0, self._dispersion * part * n * each_ns**2, 0.0)
        return Work(mean, variance)

    def capacity_per_s(self, caution: float) -> Floats:
        """Most requests per second that a lane of each share can take of this model alone; shape (shares,)."""
        shape = self.batches.shape
        rows = np.arange(len(self._latencies_ns))[:, None]
        batch = np.maximum(self.batches, 1)
        each_ns = self._latencies_ns[rows, batch - 1] / batch
        low = np.zeros(shape)
        high = np.where(self.batches > 0, NS_PER_S / each_ns, 0.0)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            work = self.work(middle)
            fits = work.mean_ns + caution * np.sqrt(work.variance_ns2) <= self._cycles_ns
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return np.asarray(low.max(axis=1))

    def narrowest(self) -> int:
        """Index of the smallest share on which a request can be in time."""
        return int(np.argmax(self.batches.any(axis=1)))


def cycle_lengths(demands: list[Demand], latencies_ns: list[Floats], points: int) -> Floats:
    """Lengths of cycles to consider: between the shortest batch and the longest deadline, in equal ratios.

    With few demands also the longest cycles that each allows with each of its batches, so that nothing is lost
    between two lengths.
    """
    shortest = min(float(table.min()) for table in latencies_ns)
    longest = float(max(demand.slo_ns for demand in demands))
    grid = np.geomspace(shortest, max(longest, shortest * 1.001), points)
    exact: set[float] = set()
    for demand, table in zip(demands, latencies_ns, strict=True):
        if len(exact) > points:
            break
        exact.update((demand.slo_ns - table[table < demand.slo_ns]).tolist())
    if len(exact) <= points:
        grid = np.unique(np.concatenate([grid, np.array(sorted(exact))]))
    return grid
