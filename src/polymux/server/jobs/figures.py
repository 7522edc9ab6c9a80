"""What is counted of jobs and of the tasks that share devices with them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

REMEMBERED = 1024
"""Waits that percentiles are made of."""


class Waits:
    """How long it took, again and again, until somebody could start."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=REMEMBERED)
        self.count = 0
        self.total_ns = 0
        self.longest_ns = 0

    def add(self, wait_ns: int) -> None:
        """Count one."""
        self._last.append(wait_ns)
        self.count += 1
        self.total_ns += wait_ns
        self.longest_ns = max(self.longest_ns, wait_ns)

    def described(self) -> dict[str, int]:
        """Describe them: how many, altogether, median, 99th percentile (of the last ones), longest; times in ns."""
        ordered = sorted(self._last)
        return {
            "count": self.count,
            "total_ns": self.total_ns,
            "p50_ns": _percentile(ordered, 50),
            "p99_ns": _percentile(ordered, 99),
            "longest_ns": self.longest_ns,
        }


def _percentile(ordered: list[int], percent: int) -> int:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0


@dataclass(slots=True)
class JobFigures:
    """What a job had so far."""

    held_ns: int = 0
    """Time for which it held devices."""
    waited_ns: int = 0
    """Time for which it had work and no device."""
    grants: int = 0
    moves: int = 0
    """Grants of another device than before."""
    taken_back: dict[str, int] = field(default_factory=dict)
    """How often a device was taken from it, by level."""
    gave_way: Waits = field(default_factory=Waits)
    """From being asked to having given way."""
    run_ns: int = 0
    """Of its last run that it told of."""
    boundary_ns: int = 0
    """Longest time between two boundaries of those that it told of."""

    def described(self) -> dict[str, Any]:
        """Describe them for JSON."""
        return {
            "held_ns": self.held_ns,
            "waited_ns": self.waited_ns,
            "grants": self.grants,
            "moves": self.moves,
            "taken_back": dict(self.taken_back),
            "gave_way": self.gave_way.described(),
            "run_ns": self.run_ns,
            "boundary_ns": self.boundary_ns,
        }
