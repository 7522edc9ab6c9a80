"""How long batches of a model really take, compared with its surface."""

from __future__ import annotations

_GAIN = 0.1
_SPREAD_GAIN = 0.08
_OUTLIER = 1.6
"""A batch that takes this many times what was expected, or that part of it, says that something has changed."""
_OUTLIER_GAIN = 0.5
_FORGET_SLOS = 6
_FORGET_MOST = 64
"""A model that has become too slow to be served is tried again after so many SLOs, in case something else had held it
up; twice as many after each trial that shows it to be slow, up to so many times as many."""


class Pace:
    """Measured over expected time of batches: a mean that follows sudden changes, and how much batches vary.

    Notes
    -----
    The mean is that of one number of units. What was measured on other numbers stands in for it until a batch has run
    there.
    """

    __slots__ = ("_at", "_forget_ns", "_mean", "_means", "_overran", "_patience", "spread")

    def __init__(self, slo_ns: int) -> None:
        self._forget_ns = _FORGET_SLOS * slo_ns
        self._patience = 1
        self._means: dict[int, float] = {}
        self._mean = 1.0
        self._overran = False
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
        if relative >= _OUTLIER or self._overran:
            self._patience = min(_FORGET_MOST, 2 * self._patience)
        elif ratio < _OUTLIER:
            self._patience = 1
        self._overran = False
        if sudden and known >= _OUTLIER and ratio < known:  # it was held up: what it takes otherwise is known
            mean = ratio
        elif sudden:
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
        self._overran = True
        self._means = {share: max(mean, ratio) for share, mean in self._means.items()}
        self._means[units] = ratio
        self._mean = max(self._mean, ratio)
        self._at = now
        return True

    def fade(self, now: int, stuck: bool) -> bool:
        """Let what was measured long ago fade where batches were slower than the surface; say whether it changed.

        Parameters
        ----------
        now : int
        stuck : bool
            Whether it is too slow to be served: then it is tried again, at the pace of the surface.
        """
        slowest = max(self._mean, *self._means.values(), 1.0)
        if slowest < _OUTLIER or now - self._at < self._forget_ns * self._patience:
            return False
        self._at = now
        if stuck:
            self._mean = 1.0
            self._means.clear()
        else:
            self._mean = 1 + (self._mean - 1) / 2
            self._means = {units: 1 + (mean - 1) / 2 for units, mean in self._means.items()}
        return True
