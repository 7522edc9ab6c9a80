"""Places demands on a given number of devices, with as much headroom as they allow."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.pack import Progress, pack
from polymux.perfmodel.capacity.placement import Placement

_LEAST, _MOST = 0.7, 4.0
_TRIES = 4
_CLOSE = 0.97
"""Part of the devices that are used, from which on nothing better is looked for."""


def fit(
    demands: Sequence[Demand], kinds: Sequence[DeviceKind], progress: Progress | None = None
) -> Placement | None:
    """Pack all demands on at most the devices that there are, spread over nearly all of them.

    Parameters
    ----------
    demands : sequence of Demand
    kinds : sequence of DeviceKind
        Each with the number of its devices as `limit`.
    progress : callable, optional

    Returns
    -------
    Placement or None
        None when they do not fit even when planned for 0.7 times their rates; `spread` then loads all evenly.

    Notes
    -----
    The headroom that fills the devices is found by interpolation: the packed devices grow about as the rates do. Up to
    five packings.
    """
    names = [demand.model for demand in demands]
    total = sum(kind.limit or 0 for kind in kinds)
    best: Placement | None = None
    low, high, factor = _LEAST, _MOST, 1.0
    for _ in range(_TRIES + 1):
        found = pack(demands, kinds, headroom=dict.fromkeys(names, factor), progress=progress)
        if found.unplaced:
            high = factor
            if high <= low:
                break
            factor = low if best is None else (low + high) / 2
        else:
            best, low = found, factor
            used = len(found.devices) / max(1, total)
            if used >= _CLOSE or low >= _MOST:
                break
            factor = min(factor / used, (factor + high) / 2) if high < _MOST else min(factor / used, _MOST)
    return best
