"""How long batches of a model really take, compared with its surface."""

from __future__ import annotations

_GAIN = 0.1
_SPREAD_GAIN = 0.08
_OUTLIER = 1.6
"""A batch that takes this many times what was expected, or that part of it, says that something has changed."""
_OUTLIER_GAIN = 0.5
_FORGET_SLOS = 4
_FORGET_MOST = 64
"""What has held a model up suddenly is taken to be over when it has not run for so many SLOs; for twice as many after
each trial that shows it to be slow, up to so many times as many."""


class Pace:
    """Measured over expected time of batches: a mean that follows sudden changes, and how much batches vary.

    Notes
    -----
    The mean is that of one number of units. What was measured on other numbers stands in for it until a batch has run
    there.
    """

    __slots__ = (
        "_at", "_forget_ns", "_held_up", "_mean", "_means", "_noticed", "_patience", "_usual", "spread",
    )  # fmt: skip

    def __init__(self, slo_ns: int) -> None:
        self._forget_ns = _FORGET_SLOS * slo_ns
        self._patience = 1
        self._means: dict[int, float] = {}
        self._mean = 1.0
        self._usual: tuple[dict[int, float], float] = ({}, 1.0)
        self._held_up = False
        self._noticed = -1
        self._at = 0
        self.spread = 0.02

    def factor(self, units: int) -> float:
        """Expected time over that of the surface, on so many units."""
        return self._means.get(units, self._mean)

    def measure(self, units: int, ratio: float, start: int, now: int) -> None:
        """Note a batch that took `ratio` times what the surface says, from `start` to `now`."""
        known = self._means.get(units, self._mean)
        if self._held_up and start > self._noticed and ratio * _OUTLIER <= known:  # it is over
            self._means, self._mean = dict(self._usual[0]), self._usual[1]
            self._held_up = False
            known = self._means.get(units, self._mean)
        relative = ratio / known
        sudden = not 1 / _OUTLIER < relative < _OUTLIER
        gain = _OUTLIER_GAIN if sudden else _GAIN
        if start <= self._noticed or relative >= _OUTLIER:
            if start > self._noticed:
                self._patience = min(_FORGET_MOST, 2 * self._patience)
            elif ratio < known:  # it had begun before, and tells nothing of what came then
                return
            self._held_up = True
        elif not sudden:
            self._patience = 1
            self._held_up = False
            deviation = 1.25 * abs(relative - 1)  # of a normal distribution: its standard deviation
            self.spread += _SPREAD_GAIN * (deviation - self.spread)
        self._means[units] = known + gain * (ratio - known)
        self._mean += gain * (ratio - self._mean)
        self._at = now
        if not self._held_up:
            self._usual = dict(self._means), self._mean

    def overrun(self, units: int, ratio: float, now: int) -> bool:
        """Note that a batch runs that has taken `ratio` times what the surface says so far; say if it is news."""
        if ratio < _OUTLIER * self.factor(units):
            return False
        if not self._held_up:
            self._patience = min(_FORGET_MOST, 2 * self._patience)
        self._held_up, self._noticed = True, now
        self._means = {share: max(mean, ratio) for share, mean in self._means.items()}
        self._means[units] = ratio
        self._mean = max(self._mean, ratio)
        self._at = now
        return True

    def fade(self, now: int) -> bool:
        """Forget what was measured long ago where batches were slower than the surface; say whether it changed.

        What was sudden goes first; the rest goes by halves.
        """
        slowest = max(self._mean, *self._means.values(), 1.0)
        if slowest < _OUTLIER or now - self._at < self._forget_ns * self._patience:
            return False
        self._at = now
        if self._held_up:
            self._held_up = False
            self._means, self._mean = dict(self._usual[0]), self._usual[1]
        else:
            self._mean = 1 + (self._mean - 1) / 2
            self._means = {units: 1 + (mean - 1) / 2 for units, mean in self._means.items()}
        return True
