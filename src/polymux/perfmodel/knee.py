"""The knee of a model: the share of a device from which on more of it brings little. Three definitions.

They differ on purpose: `derivative_knee` is D-STACK's, `chord_knee` the geometric one of any falling curve (a
curve that goes on falling with the inverse of the share bends at a third of it), and
`tolerance_knee` says what a user asks: how little is nearly as fast as the whole device?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from polymux.core.errors import InvalidRequest
from polymux.core.serving.model import LatencySurface

TOLERANCE = 0.1
"""How much slower than the whole device `tolerance_knee` may be, unless told otherwise."""


def derivative_knee(surface: LatencySurface, batch: int, shares: Sequence[int]) -> int:
    """Find the share at which ``1 / (latency**2 * share)`` is largest.

    That is the derivative of the throughput per share, ``1 / (latency * share)``, with respect to the latency, up to
    its sign. Of equal shares the smallest.

    Parameters
    ----------
    surface : LatencySurface
    batch : int
    shares : sequence of int, units, ascending
        What the device offers.

    Returns
    -------
    int, units

    Raises
    ------
    InvalidRequest
        If there are no shares, they do not ascend, or a number is below 1.

    References
    ----------
    D-STACK, equation 6.
    """
    times = _times(surface, batch, shares)
    return max(
        zip(shares, times, strict=True), key=lambda point: (1 / (point[1] ** 2 * point[0]), -point[0])
    )[0]


def chord_knee(surface: LatencySurface, batch: int, shares: Sequence[int]) -> int:
    """Find the share at which the latency lies furthest below the line between its ends.

    Both axes are scaled to 0..1. Of equal shares the smallest; the smallest of all where the latency does not fall.

    Parameters
    ----------
    surface, batch, shares
        As in `derivative_knee`.

    Returns
    -------
    int, units

    Raises
    ------
    InvalidRequest
        As `derivative_knee`.

    References
    ----------
    Satopää, Albrecht, Irwin, Raghavan: Finding a "Kneedle" in a Haystack. ICDCS Workshops, 2011.
    """
    times = _times(surface, batch, shares)
    width, height = shares[-1] - shares[0], times[0] - times[-1]
    if width == 0 or height <= 0:
        return shares[0]
    below = [
        1 - (share - shares[0]) / width - (time - times[-1]) / height
        for share, time in zip(shares, times, strict=True)
    ]
    return shares[below.index(max(below))]


def tolerance_knee(
    surface: LatencySurface, batch: int, shares: Sequence[int], tolerance: float = TOLERANCE
) -> int:
    """Find the smallest share that takes at most ``1 + tolerance`` times as long as the largest one.

    Parameters
    ----------
    surface, batch, shares
        As in `derivative_knee`.
    tolerance : float
        0.1: ten per cent slower.

    Returns
    -------
    int, units

    Raises
    ------
    InvalidRequest
        As `derivative_knee`, or if `tolerance` is negative.
    """
    if not tolerance >= 0:
        raise InvalidRequest(f"knee within {tolerance} of the whole device; give 0 or more")
    times = _times(surface, batch, shares)
    most = times[-1] * (1 + tolerance)
    return next(share for share, time in zip(shares, times, strict=True) if time <= most)


KNEES: MappingProxyType[str, Callable[[LatencySurface, int, Sequence[int]], int]] = MappingProxyType(
    {"derivative": derivative_knee, "chord": chord_knee, "tolerance": tolerance_knee}
)
"""The definitions by name."""


def _times(surface: LatencySurface, batch: int, shares: Sequence[int]) -> list[int]:
    if not shares or list(shares) != sorted(set(shares)) or shares[0] < 1:
        raise InvalidRequest(f"knee over the shares {tuple(shares)}; give one or more from 1 on, ascending")
    return [surface.latency_ns(share, batch) for share in shares]
