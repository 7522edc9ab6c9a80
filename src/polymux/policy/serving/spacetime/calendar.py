"""How many units of a device are free when: what runs and what is reserved, as a step function of time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_MANY = _NEVER = 1 << 62


class Calendar:
    """Free units over time; all units are free after the last reservation.

    Parameters
    ----------
    units : int
        Of the device.

    Notes
    -----
    More than there are may be taken, when a batch lasts longer than was planned: fewer than 0 are free then. The cost
    of each call grows with the number of reservations that it passes.
    """

    __slots__ = ("free", "times", "units")

    def __init__(self, units: int) -> None:
        self.units = units
        self.times = [0]
        self.free = [units]

    def advance(self, now: int) -> None:
        """Forget what lies before `now`."""
        times = self.times
        passed = bisect_right(times, now) - 1
        if passed > 0:
            del times[:passed]
            del self.free[:passed]
        if times[0] < now:
            times[0] = now

    def take(self, start: int, end: int, units: int) -> None:
        """Reserve units from `start` to `end`; what lies before the calendar's beginning is left out."""
        times, free = self.times, self.free
        start = max(start, times[0])
        if end <= start:
            return
        first = self._cut(start)
        last = self._cut(end)
        for index in range(first, last):
            free[index] -= units
        for index in (last, first):
            if index and free[index] == free[index - 1]:
                del times[index], free[index]

    def give(self, start: int, end: int, units: int) -> None:
        """Take a reservation, or a part of it, back."""
        self.take(start, end, -units)

    def find(self, units: int, duration: int, start: int) -> int:
        """First time from `start` on at which so many units are free for so long; they must exist."""
        times, free = self.times, self.free
        count = len(times)
        at = max(start, times[0])
        index = bisect_right(times, at) - 1
        end = at + duration
        while True:
            if free[index] < units:
                index += 1
                at = times[index]
                end = at + duration
                continue
            index += 1
            if index == count or times[index] >= end:
                return at

    def find_last(self, units: int, duration: int, earliest: int, latest: int) -> int:
        """Last time from `earliest` to `latest` at which so many units are free for so long; -1: there is none."""
        times, free = self.times, self.free
        at = latest
        index = bisect_left(times, at + duration) - 1
        while at >= earliest:
            if free[index] < units:
                at = times[index] - duration
                if at < earliest:
                    return -1
                index -= 1
                if index < 0:
                    return -1
                continue
            if times[index] <= at:
                return at
            index -= 1
            if index < 0:
                return at if at >= times[0] else -1
        return -1

    def least(self, start: int, end: int) -> int:
        """Fewest units that are free at any time from `start` to `end`."""
        times = self.times
        first = max(0, bisect_right(times, start) - 1)
        last = max(first + 1, bisect_left(times, end))
        return min(self.free[first:last])

    def room(self, now: int, least: int, own: tuple[int, int, int]) -> list[tuple[int, int]]:
        """How many units are free without a break from now on, if a reservation is left out.

        Parameters
        ----------
        now : int
        least : int
            Fewer units than this are not of interest.
        own : (int, int, int)
            Start, end and units of the reservation.

        Returns
        -------
        list of (int, int)
            From which time on how many: the first from `now`, each later one fewer.
        """
        times, free = self.times, self.free
        own_start, own_end, own_units = own
        found: list[tuple[int, int]] = []
        most = _MANY
        count = len(times)
        index = max(0, bisect_right(times, now) - 1)
        at = now
        while True:
            units = free[index]
            index += 1
            until = times[index] if index < count else _NEVER
            if own_start < until and at < own_end:
                if at < own_start and units < most:
                    found.append((at, units))
                    most = units
                if units + own_units < most:
                    most = units + own_units
                    found.append((max(at, own_start), most))
                if own_end < until and units < most:
                    found.append((own_end, units))
                    most = units
            elif units < most:
                found.append((at, units))
                most = units
            if most < least or index == count:
                return found
            at = until

    def _cut(self, time: int) -> int:
        times = self.times
        index = bisect_left(times, time)
        if index == len(times) or times[index] != time:
            times.insert(index, time)
            self.free.insert(index, self.free[index - 1])
        return index
