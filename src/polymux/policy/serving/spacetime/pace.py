"""How long batches of a model really take, compared with its surface."""

from __future__ import annotations

_GAIN = 0.1
_SPREAD_GAIN = 0.08
_OUTLIER = 1.6
"""A batch that takes this many times what was expected, or that part of it, says that something has changed."""
_OUTLIER_GAIN = 0.5
_FORGET_SLOS = 15
_FORGET_MOST = 16
"""A model that has become too slow to be served is tried again as what is known of it fades: half in so many SLOs,
twice as many after each trial that shows it to be as slow, up to so many times as many."""


class Pace:
    """Measured over expected time of batches: a mean that follows sudden changes, and how much batches vary.

    Notes
    -----
    The mean is that of one number of units. What was measured on other numbers stands in for it until a batch has run
    there.
    """

    __slots__ = ("_at", "_half_ns", "_mean", "_means", "_patience", "spread")

    def __init__(self, slo_ns: int) -> None:
        self._half_ns = _FORGET_SLOS * slo_ns
        self._patience = 1
        self._means: dict[int, float] = {}
        self._mean = 1.0
        self._at = 0
        self.spread = 0.02

    def factor(self, units: int) -> float:
        """Expected time over that of the surface, on so many units."""
        return self._means.get(units, self._mean)

    def measure(self, units: int, ratio: float, now: int) -> None:
        """Note a batch that took `ratio` times what the surface says."""
        known = self._means.get(units, self._mean)
        relative = ratio / known
        sudden = not 1 / _OUTLIER < relative < _OUTLIER
        if relative >= _OUTLIER and self._patience < _FORGET_MOST:
            self._patience *= 2
        elif not sudden:
            self._patience = 1
        if sudden:
            mean = known + _OUTLIER_GAIN * (ratio - known)
        else:
            mean = known + _GAIN * (ratio - known)
            deviation = 1.25 * abs(relative - 1)  # of a normal distribution: its standard deviation
            self.spread += _SPREAD_GAIN * (deviation - self.spread)
        self._means[units] = mean
        self._mean += (_OUTLIER_GAIN if sudden else _GAIN) * (ratio - self._mean)
        self._at = now

    def overrun(self, units: int, ratio: float, now: int) -> bool:
        """Note that a batch runs that has taken `ratio` times what the surface says so far; say if it is news."""
        if ratio < _OUTLIER * self.factor(units):
            return False
        self._means = {share: max(mean, ratio) for share, mean in self._means.items()}
        self._means[units] = ratio
        self._mean = max(self._mean, ratio)
        self._at = now
        return True

    def fade(self, now: int) -> bool:
        """Let what was measured long ago fade where batches were slower than the surface; say whether it changed."""
        if (
            now - self._at < self._half_ns * self._patience
            or max(self._mean, *self._means.values(), 1.0) < _OUTLIER
        ):
            return False
        self._at = now
        self._mean = 1 + (self._mean - 1) / 2
        self._means = {units: 1 + (mean - 1) / 2 for units, mean in self._means.items()}
        return True
