"""Times of something that is repeated, with what else the machine did meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

DISTURBED = 1.1
"""A sample that took so many times the shortest was disturbed, and is repeated."""
BUSY_CORES = 0.15
"""Other processes that used so many cores on average disturbed a measurement."""
_SHORTEST_NS = 2_000_000
_MOST_IN_A_SAMPLE = 64
_LEAST_WATCHED_S = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one thing.

    Parameters
    ----------
    seconds : tuple of float
        The samples that were kept.
    disturbed : int
        Samples that were not.
    others : float, optional
        Cores that other processes used meanwhile, on average; None: it took too short a time to tell.
    """

    seconds: tuple[float, ...]
    disturbed: int
    others: float | None

    @property
    def median_s(self) -> float:
        """Median of the kept samples."""
        return median(self.seconds)

    @property
    def is_busy(self) -> bool:
        """Whether the machine had other things to do: other processes ran, or most samples were disturbed."""
        return (self.others or 0.0) > BUSY_CORES or self.disturbed > len(self.seconds)


class Others:
    """How much processor time processes other than some take.

    Parameters
    ----------
    pids : sequence of int
        Those that measure.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self.start()

    def start(self) -> None:
        """Begin anew."""
        self._since = time.monotonic()
        self._used = self._others_s()

    def cores(self) -> float | None:
        """Cores that others used since `start`, on average; None when that was just now, or Linux does not tell."""
        elapsed, used = time.monotonic() - self._since, self._others_s()
        if elapsed < _LEAST_WATCHED_S or used is None or self._used is None:
            return None
        return max(0.0, used - self._used) / elapsed

    def _others_s(self) -> float | None:
        try:
            total = _busy_ticks(Path("/proc/stat").read_text())
            own = sum(_ticks(Path(f"/proc/{pid}/stat").read_text()) for pid in self._pids)
        except (OSError, ValueError, IndexError):
            return None
        return (total - own) * self._tick_s


def _busy_ticks(stat: str) -> int:
    """Ticks of all processors that were neither idle nor waiting: proc(5), the first line of /proc/stat."""
    user, nice, system, _idle, _iowait, irq, softirq, *stolen = map(int, stat.split("\n", 1)[0].split()[1:9])
    return user + nice + system + irq + softirq + sum(stolen)


def _ticks(stat: str) -> int:
    """User and system time of a process: fields 14 and 15 of proc(5)."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def measure(
    run: Callable[[], int], others: Others, *, repeats: int = 5, most_s: float = 2.0, warm_up: int = 1
) -> Timing:
    """Time something until enough samples were undisturbed.

    Parameters
    ----------
    run : callable
        Does it once and returns how long that took, in ns. What takes less than 2 ms is done several times for a
        sample, of which the median counts; never together, or the time to begin each would not show.
    others : Others
    repeats : int
        Undisturbed samples that are wanted.
    most_s : float
        Longest time for all samples.
    warm_up : int
        Runs before.
    """
    once = max(1, min(run() for _ in range(warm_up + 1)))
    count = min(_MOST_IN_A_SAMPLE, max(1, -(-_SHORTEST_NS // once)))
    samples: list[float] = []
    others.start()
    end = time.monotonic() + most_s
    while len(samples) < 3 * repeats:
        samples.append(median(run() for _ in range(count)) / 1e9)
        kept = _kept(samples)
        if len(kept) >= repeats or (time.monotonic() > end and len(samples) >= 2):
            break
    kept = _kept(samples)
    return Timing(tuple(kept), len(samples) - len(kept), others.cores())


def _kept(samples: Sequence[float]) -> list[float]:
    limit = min(samples) * DISTURBED
    return [sample for sample in samples if sample <= limit]
