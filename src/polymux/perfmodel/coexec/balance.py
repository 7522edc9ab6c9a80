"""The split whose units end together, where copies of one unit do not wait for those of another. In closed form.

A unit's time is linear between the points of its curve. So what all units together get done by a time T is linear
between the times of all points, and the T at which it is everything is found by one table and one division: for every
choice of units at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polymux.perfmodel.coexec.curves import Curve, Floats, Masks


def balance(curves: Sequence[Curve], masks: Masks, extent: int) -> tuple[Floats, Floats]:
    """Balance a problem over each choice of units.

    Parameters
    ----------
    curves : sequence of Curve
    masks : array of bool, of shape (choices, units)
        Which units are used.
    extent : int
        Length of the axis that is split.

    Returns
    -------
    makespans : array of shape (choices,), s
    counts : array of shape (choices, units)
        Length of each part, not rounded. A unit of the choice whose smallest part would end too late gets 0.

    Notes
    -----
    The makespan is the least of all splits that use only units of the choice, as long as curves rise: a unit whose
    smallest part ends before T gets as much as it can do by T.
    """
    wholes = [curve.whole_s() for curve in curves]
    times = np.unique(np.concatenate([*wholes, [whole[0] * (1 - 1e-9) for whole in wholes]]))
    done = np.stack(
        [np.interp(times, whole, curve.counts, left=0.0) for whole, curve in zip(wholes, curves, strict=True)]
    )
    together = masks.astype(np.float64) @ done
    last = np.argmax(together >= extent * (1 - 1e-12), axis=1)  # everybody can do all: there is one
    before = np.maximum(last - 1, 0)
    rows = np.arange(len(masks))
    low, high = together[rows, before], together[rows, last]
    part = np.where(high > low, (extent - low) / np.where(high > low, high - low, 1.0), 1.0)
    part = np.clip(part, 0.0, 1.0)
    makespans = times[before] + part * (times[last] - times[before])
    counts = (done[:, before] + part * (done[:, last] - done[:, before])).T * masks
    least = np.array([curve.counts[0] for curve in curves])
    impossible = (masks * least).sum(axis=1) > extent
    return np.where(impossible, np.inf, makespans), _at_least(counts, least, extent)


def _at_least(counts: Floats, least: Floats, extent: int) -> Floats:
    """Give a unit whose smallest part just ends in time all of it, and the others so much less."""
    used = counts > 0
    for _ in range(counts.shape[1]):
        short = used & (counts <= least)
        if not (short & (counts < least * (1 - 1e-12))).any():
            break
        fixed = np.where(short, least, 0.0)
        rest = np.where(short, 0.0, counts)
        total = rest.sum(axis=1)
        scale = np.maximum(0.0, extent - fixed.sum(axis=1)) / np.where(total > 0, total, 1.0)
        counts = fixed + rest * scale[:, None]
    return counts
