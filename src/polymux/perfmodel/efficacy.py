"""Share and batch at which a model makes most of a device: D-STACK's efficacy, under deadline and rate.

The efficacy falls with the square of the latency. Without a minimum rate its optimum therefore sits at a batch of 1 or
2 for most models, far below what they have to serve: so `find_optimum` takes the rate as a constraint, unless told
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polymux.core.errors import InvalidRequest
from polymux.core.serving.model import LatencySurface

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Optimum:
    """Where a model runs best.

    Parameters
    ----------
    units : int
    batch : int
    latency_ns : int, ns
        Of one batch.
    assembly_ns : int, ns
        Until a batch's requests have arrived.
    throughput_per_s : float, items/s
        Of batches one after the other.
    efficacy : float, items / (s**2 * share)
        With the share as a fraction of the device.
    """

    units: int
    batch: int
    latency_ns: int
    assembly_ns: int
    throughput_per_s: float
    efficacy: float


def throughput_per_s(surface: LatencySurface, units: int, batch: int) -> float:
    """Items per second when batches run one after the other: ``T = b / f_L(p, b)``.

    References
    ----------
    D-STACK, equation 8.
    """
    return batch * _SECOND_NS / surface.latency_ns(units, batch)


def efficacy(surface: LatencySurface, units: int, batch: int, device_units: int = 100) -> float:
    """Throughput for latency and share spent: ``eta = T / (L * GPU%) = b / (f_L(p, b)**2 * GPU%)``.

    Parameters
    ----------
    surface : LatencySurface
    units, batch : int
    device_units : int
        Units of the whole device.

    Returns
    -------
    float, items / (s**2 * share)
        With the share as a fraction of the device.

    References
    ----------
    D-STACK, equations 7 and 9.
    """
    seconds = surface.latency_ns(units, batch) / _SECOND_NS
    return batch / (seconds * seconds * units / device_units)


def transfer_ns(nbytes: int, bits_per_s: float) -> int:
    """How long some bytes take over a link, in ns: 481.7 us for a 224 x 224 x 3 image in single precision at 10 Gb/s.

    Raises
    ------
    InvalidRequest
        If `nbytes` is negative or `bits_per_s` is not positive.

    References
    ----------
    D-STACK: the assembly of a batch.
    """
    if nbytes < 0 or not bits_per_s > 0:
        raise InvalidRequest(f"transfer of {nbytes} bytes at {bits_per_s} bit/s; give positive numbers")
    return round(nbytes * 8 * _SECOND_NS / bits_per_s)


def find_optimum(
    surface: LatencySurface,
    shares: Sequence[int],
    slo_ns: int,
    rate_per_s: float,
    *,
    minimum_rate: bool = True,
    device_units: int = 100,
) -> Optimum | None:
    """Find the share and batch of largest efficacy that keep the deadline and, unless told otherwise, the rate.

    Over ``1 <= b <= b_max`` (equation 10), with ``C = b / rate`` the time until a batch has arrived:
    ``f_L(p, b) + C <= SLO`` (11), ``f_L(p, b) <= SLO / 2`` (12), and ``b / f_L(p, b) >= rate``.
    Of equal points the one with the smaller share, then the smaller batch.

    Parameters
    ----------
    surface : LatencySurface
    shares : sequence of int, units
        What the device offers.
    slo_ns : int, ns
    rate_per_s : float, items/s
        At which requests arrive.
    minimum_rate : bool
        Whether one batch after the other has to keep up with that rate; not in the paper.
    device_units : int
        Units of the whole device.

    Returns
    -------
    Optimum or None
        None: no point keeps all constraints; `why_none` says which one fails.

    Raises
    ------
    InvalidRequest
        If there are no shares, or `slo_ns` or `rate_per_s` is not positive.

    Notes
    -----
    Evaluates the surface at each share and batch.

    References
    ----------
    D-STACK, equations 7 to 12.
    """
    points = _points(surface, shares, slo_ns, rate_per_s, device_units)
    kept = (point for point in points if not _violations(point, slo_ns, rate_per_s, minimum_rate))
    return max(kept, key=lambda point: (point.efficacy, -point.units, -point.batch), default=None)


def why_none(
    surface: LatencySurface,
    shares: Sequence[int],
    slo_ns: int,
    rate_per_s: float,
    *,
    minimum_rate: bool = True,
) -> str:
    """Say in a sentence why `find_optimum` finds nothing, and what could be met; empty when it finds something.

    Parameters
    ----------
    surface, shares, slo_ns, rate_per_s, minimum_rate
        As in `find_optimum`.

    Raises
    ------
    InvalidRequest
        As `find_optimum`.
    """
    points = list(_points(surface, shares, slo_ns, rate_per_s, 100))
    if not all(_violations(point, slo_ns, rate_per_s, minimum_rate) for point in points):
        return ""
    fastest = min(point.latency_ns for point in points)
    if 2 * fastest > slo_ns:
        return (
            f"the fastest batch takes {fastest / 1e6:.3g} ms, more than half of the SLO of {slo_ns / 1e6:.3g} ms;"
            f" give an SLO of {2 * fastest / 1e6:.3g} ms or more"
        )
    timely = [point for point in points if not _violations(point, slo_ns, rate_per_s, minimum_rate=False)]
    if not timely:
        fewest = min(point.latency_ns + point.assembly_ns for point in points)
        return (
            f"at {rate_per_s:.4g} requests/s a batch and its assembly take at least {fewest / 1e6:.3g} ms, more than"
            f" the SLO of {slo_ns / 1e6:.3g} ms; give an SLO of {fewest / 1e6:.3g} ms or more"
        )
    most = max(point.throughput_per_s for point in timely)
    return (
        f"within the SLO of {slo_ns / 1e6:.3g} ms one batch after the other serves at most {most:.4g} requests/s of"
        f" {rate_per_s:.4g}; give more devices or a longer SLO"
    )


def _points(
    surface: LatencySurface, shares: Sequence[int], slo_ns: int, rate_per_s: float, device_units: int
) -> Iterator[Optimum]:
    if not shares or slo_ns <= 0 or not rate_per_s > 0:
        raise InvalidRequest(
            f"optimum over {len(shares)} shares with an SLO of {slo_ns} ns at {rate_per_s} requests/s; give one"
            " share or more, and a positive SLO and rate"
        )
    for units in shares:
        for batch in range(1, surface.max_batch + 1):
            yield Optimum(
                units,
                batch,
                surface.latency_ns(units, batch),
                round(batch / rate_per_s * _SECOND_NS),
                throughput_per_s(surface, units, batch),
                efficacy(surface, units, batch, device_units),
            )


def _violations(point: Optimum, slo_ns: int, rate_per_s: float, minimum_rate: bool) -> bool:
    late = point.latency_ns + point.assembly_ns > slo_ns or 2 * point.latency_ns > slo_ns
    return late or (minimum_rate and point.throughput_per_s < rate_per_s)
