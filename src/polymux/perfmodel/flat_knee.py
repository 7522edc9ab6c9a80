"""The latency surface that the D-STACK paper assumes: flat above a knee."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from polymux.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class FlatKneeSurface:
    """Latency that stays the same above a share, the knee, and grows with the inverse of the share below it.

    Linear between the batches that are given; a smaller batch takes as long as the smallest of them, a batch beyond the
    largest as many times longer as it is larger.

    Parameters
    ----------
    knee_units : int
        Compute units; percent where shares are a percentage of the device.
    runtimes_ns : tuple of (int, int), (batch, ns)
        How long a batch takes at the knee, ascending in the batch.
    limit : int
        Largest batch that may be formed; 0: the largest of `runtimes_ns`.

    Raises
    ------
    InvalidRequest
        If a number is below 1, or the batches do not ascend or the times descend.

    Notes
    -----
    Measured surfaces are not flat: see docs/performance-models.md. This one is for reproducing what the paper says.

    References
    ----------
    D-STACK: the knee of a model; the simulations of its comparison with an ideal scheduler.
    """

    knee_units: int
    runtimes_ns: tuple[tuple[int, int], ...]
    limit: int = 0
    _known: dict[tuple[int, int], int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.knee_units < 1 or self.limit < 0 or not self.runtimes_ns:
            raise InvalidRequest(
                f"flat surface: a knee at {self.knee_units} units, limit {self.limit}, {len(self.runtimes_ns)} times;"
                " give a knee of 1 or more, a limit of 0 or more, and at least one time"
            )
        rising = all(b[0] > a[0] and b[1] >= a[1] for a, b in pairwise(self.runtimes_ns))
        if not rising or min(self.runtimes_ns[0]) < 1:
            raise InvalidRequest(
                f"flat surface: batches and times at the knee are {self.runtimes_ns}; give positive numbers,"
                " the batches ascending and the times not falling"
            )

    @property
    def max_batch(self) -> int:
        """Largest batch that may be formed."""
        return self.limit or self.runtimes_ns[-1][0]

    def latency_ns(self, units: int, batch: int) -> int:
        """Time of one batch on `units` compute units, in ns, at least 1.

        Raises
        ------
        InvalidRequest
            If `units` or `batch` is below 1.
        """
        key = (units, batch)
        known = self._known.get(key)
        if known is None:
            if units < 1 or batch < 1:
                raise InvalidRequest(
                    f"latency of a batch of {batch} on {units} units; give 1 or more of both"
                )
            slower = max(1.0, self.knee_units / units)
            known = self._known[key] = max(1, round(self._at_knee(batch) * slower))
        return known

    def _at_knee(self, batch: int) -> float:
        if batch <= self.runtimes_ns[0][0]:
            return self.runtimes_ns[0][1]
        for (low, low_ns), (high, high_ns) in pairwise(self.runtimes_ns):
            if batch <= high:
                return low_ns + (high_ns - low_ns) * (batch - low) / (high - low)
        last, last_ns = self.runtimes_ns[-1]
        return last_ns * batch / last
