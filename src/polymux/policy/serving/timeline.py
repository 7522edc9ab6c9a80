"""Units of a device over time: what runs, what is planned, and where something more fits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Self


class Timeline:
    """Units in use as a step function of time, from `start_ns` on.

    Parameters
    ----------
    units : int
        Of the device.
    start_ns : int
    """

    def __init__(self, units: int, start_ns: int) -> None:
        self._units = units
        self._times = [start_ns]
        self._used = [0]

    def copy(self) -> Self:
        """Make one that can be changed by itself."""
        made = type(self)(self._units, 0)
        made._times, made._used = self._times[:], self._used[:]
        return made

    def changes(self) -> list[int]:
        """Times after the first at which the use changes, ascending."""
        return self._times[1:]

    def add(self, units: int, start_ns: int, end_ns: int) -> None:
        """Use so many units more from `start_ns` (not before the beginning) to `end_ns`; fewer, if negative."""
        first, last = self._cut(start_ns), self._cut(end_ns)
        used = self._used
        for index in range(first, last):
            used[index] += units

    def fits(self, units: int, start_ns: int, end_ns: int) -> bool:
        """Whether so many units are free all the time from `start_ns` to `end_ns`."""
        return self.earliest(units, end_ns - start_ns, start_ns, end_ns) == start_ns

    def earliest(self, units: int, run_ns: int, from_ns: int, until_ns: int | None = None) -> int | None:
        """First time from `from_ns` on at which so many units are free for `run_ns`.

        Returns
        -------
        int or None
            None: at no time that would let it end by `until_ns`.
        """
        found = self._find(units, run_ns, from_ns, until_ns)
        return None if found is None else found[0]

    def put(self, units: int, run_ns: int, from_ns: int, until_ns: int | None = None) -> int | None:
        """Use so many units more for `run_ns` at the time that `earliest` finds; return that time."""
        found = self._find(units, run_ns, from_ns, until_ns)
        if found is None:
            return None
        start, first, last = found
        times, used = self._times, self._used
        if last == len(times) or times[last] != start + run_ns:
            times.insert(last, start + run_ns)
            used.insert(last, used[last - 1])
        if times[first] != start:
            first, last = first + 1, last + 1
            times.insert(first, start)
            used.insert(first, used[first - 1])
        for index in range(first, last):
            used[index] += units
        return start

    def _find(
        self, units: int, run_ns: int, from_ns: int, until_ns: int | None
    ) -> tuple[int, int, int] | None:
        """What `earliest` finds, the step in which it lies, and the first step from its end on."""
        times, used, limit = self._times, self._used, self._units - units
        if limit < 0:
            return None
        count = len(times)
        first = index = max(0, bisect_right(times, from_ns) - 1)
        start, end = from_ns, from_ns + run_ns
        while until_ns is None or end <= until_ns:
            if used[index] > limit:
                first = index = index + 1
                start, end = times[index], times[index] + run_ns
                continue
            index += 1
            if index == count or times[index] >= end:
                return start, first, index
        return None

    def _cut(self, at_ns: int) -> int:
        """Index of the step that begins at a time, made if there is none."""
        times = self._times
        index = bisect_left(times, at_ns)
        if index < len(times) and times[index] == at_ns:
            return index
        times.insert(index, at_ns)
        self._used.insert(index, self._used[index - 1] if index else 0)
        return index
