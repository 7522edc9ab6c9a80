"""What the cores did while something was measured: the benchmark's own processes, and everybody else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_IDLE, _WAITING, _LAST = 3, 4, 7
"""Fields of a core in ``/proc/stat``: idle, waiting for a disk, and the last that is no part of another (steal)."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time up to some moment, in seconds.

    Attributes
    ----------
    at_s : float
    busy_s : float
        Of the cores, by everybody, with what the host of a virtual machine took away.
    own_s : float
        Of the benchmark's processes.
    """

    at_s: float
    busy_s: float
    own_s: float


class Machine:
    """Watches some cores.

    Parameters
    ----------
    cores : iterable of int
    proc : pathlib.Path
        Where the operating system tells.
    """

    def __init__(self, cores: Iterable[int], proc: Path = Path("/proc")) -> None:
        self._cores = {f"cpu{core}" for core in cores}
        self._proc = proc

    def usage(self, pids: Iterable[int]) -> Usage:
        """Read what was used so far; `pids` are the benchmark's processes."""
        now_s = time.monotonic()
        lines = (self._proc / "stat").read_text().splitlines()
        busy = sum(_busy_ticks(line.split()) for line in lines if line.split(" ", 1)[0] in self._cores)
        return Usage(now_s, busy * _TICK_S, sum(self._process_s(pid) for pid in pids))

    def others(self, before: Usage, after: Usage) -> float:
        """Part of the cores' time between two moments that the benchmark did not use itself; 0 to 1."""
        whole_s = max(1e-9, (after.at_s - before.at_s) * max(1, len(self._cores)))
        others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
        return min(1.0, max(0.0, others_s / whole_s))

    def _process_s(self, pid: int) -> float:
        try:
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0  # it has ended; whoever needs it notices
        return (int(fields[11]) + int(fields[12])) * _TICK_S


def _busy_ticks(fields: list[str]) -> int:
    times = [int(field) for field in fields[1 : _LAST + 2]]
    return sum(times) - times[_IDLE] - times[_WAITING]
