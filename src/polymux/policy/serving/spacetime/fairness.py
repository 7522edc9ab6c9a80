"""Divides devices among models when there is not enough: max-min fair by weight, higher priorities first."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def divide(
    capacity: float,
    demands: Mapping[Name, float],
    weights: Mapping[Name, int],
    priorities: Mapping[Name, int],
) -> dict[Name, float]:
    """Give each what it demands, or as much as others of its weight and priority get that demand more.

    Parameters
    ----------
    capacity : float
        To be divided; in the unit of `demands`.
    demands, weights, priorities : mapping

    Returns
    -------
    dict
        Of the names in `demands`.

    References
    ----------
    Bertsekas and Gallager, Data Networks, 6.5.2: max-min fairness by filling up.
    """
    given: dict[Name, float] = {}
    for priority in sorted({priorities[name] for name in demands}, reverse=True):
        names = [name for name in demands if priorities[name] == priority]
        names.sort(key=lambda name: demands[name] / weights[name])
        weight = sum(weights[name] for name in names)
        for name in names:
            given[name] = min(demands[name], capacity * weights[name] / weight)
            capacity = max(0.0, capacity - given[name])
            weight -= weights[name]
    return given
