"""How much longer units take than their models say.

Beside others, with whom they share clock, caches and memory; and alone, where submitting and noticing the end count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable
from math import log2

from polymux.perfmodel.coexec.problem import Problem

WINDOW = 9
"""Runs that are kept; the median of so many follows a lasting change after five."""
SPIKE = 1.5
"""A first run that is slower by more has to be confirmed by a second one."""
_FEW = 5
"""Of so few runs the best one counts: the first ones build programs and touch memory."""
_SPREAD = 0.1

Key = tuple[str, frozenset[str], Hashable]


def octave(problem: Problem) -> int:
    """Say how large a problem is: the whole part of the logarithm of its work."""
    return int(log2(problem.unit_work * problem.extent))


class Company:
    """Keeps how units of one operation fare together; used by one thread at a time.

    Parameters
    ----------
    together_s : float, s
        What more than one unit costs besides, until it is known: waking it, noticing that it has ended, and that the
        last one of several ends later than each does as a rule.
    """

    def __init__(self, together_s: float) -> None:
        self._ratios: dict[Key, deque[float]] = {}
        self._first_s = together_s
        self._together_s: dict[tuple[frozenset[str], int], deque[float]] = {}
        self.has_news = False
        """Whether something was noted; whoever has planned with it sets it back."""

    def together_s(self, units: Collection[str], problem: Problem) -> float:
        """What runs of these units together take longer than predicted of the one that is busy longest, in s."""
        known = self._together_s.get((frozenset(units), octave(problem)))
        if not known:
            return self._first_s
        return max(0.0, min(known) if len(known) < _FEW else _middle(known))

    def took_together(
        self, units: Collection[str], problem: Problem, run_s: float, predicted_s: float, busiest_s: float
    ) -> None:
        """Note how long a run took, and the unit that is busy longest: as predicted, and as it was.

        What one unit takes longer than predicted counts for at most 10 % of the run: the rest is that unit's.
        """
        key = (frozenset(units), octave(problem))
        longer_s = run_s - max(predicted_s, busiest_s - _SPREAD * run_s)
        self._together_s.setdefault(key, deque(maxlen=WINDOW)).append(longer_s)
        self.has_news = True

    def passed_over(self, units: Collection[str], problem: Problem) -> None:
        """Note that a plan leaves these units apart: of what was seen of them the worst is forgotten.

        So they get another try now and then, whatever disturbed them.
        """
        beside, size = frozenset(units), octave(problem)
        known = [self._together_s.get((beside, size))]
        known += [self._ratios.get((unit, beside, size)) for unit in units]
        known += [self._ratios.get((unit, beside, problem)) for unit in units]
        for values in known:
            if values:
                values.remove(max(values))

    def saw(self, unit: str, beside: Collection[str], problem: Problem, ratio: float) -> None:
        """Note how many times longer than its model says a unit took beside others; `beside` has it, too."""
        for size in (problem, octave(problem)):
            key = (unit, frozenset(beside), size)
            self._ratios.setdefault(key, deque(maxlen=WINDOW)).append(ratio)
        self.has_news = True

    def slowdown(self, unit: str, beside: Collection[str], problem: Problem) -> float:
        """How many times longer a unit takes than its model says: in runs of this problem, or else its size."""
        for size in (problem, octave(problem)):
            ratios = self._ratios.get((unit, frozenset(beside), size))
            if ratios and (len(ratios) > 1 or ratios[0] <= SPIKE):
                return max(1.0, _middle(ratios))
        return 1.0

    def slowdowns(self, units: Collection[str], problem: Problem) -> dict[str, float]:
        """Slowdowns of units that compute together, of those that have one."""
        found = {unit: self.slowdown(unit, units, problem) for unit in units}
        return {unit: slowdown for unit, slowdown in found.items() if slowdown > 1.0}


def _middle(values: Iterable[float]) -> float:
    """Lower median: one spike moves nothing."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
