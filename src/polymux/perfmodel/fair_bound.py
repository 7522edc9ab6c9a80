"""How much of the time every model can run at least, when models run side by side at fixed shares: an upper bound.

A schedule without gaps runs, at each moment, a set of models whose shares fit on the device together. The bound is the
optimum of a linear program over the parts of time that the sets get: no order, deadline or length of a batch can do
better, and a scheduler that always starts the model with the least device time comes close to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from polymux.core.errors import InvalidRequest

MOST_MODELS = 12
"""Their sets are listed, and may be as many as binomial coefficients."""


@dataclass(frozen=True, slots=True)
class FairBound:
    """The best that is possible for the model that is served worst.

    Parameters
    ----------
    part : Fraction
        Of the time for which each model can run, times its weight.
    utilisation : Fraction
        Of the device when models run for just that: 0 to 1.
    sets : tuple of (tuple of str, Fraction)
        Models that run together, and for which part of the time.
    """

    part: Fraction
    utilisation: Fraction
    sets: tuple[tuple[tuple[str, ...], Fraction], ...]


def fair_bound(
    shares: Mapping[str, int], capacity: int = 100, weights: Mapping[str, int] | None = None
) -> FairBound:
    """Find the largest t such that every model can run for a part t of the time, exactly.

    Parameters
    ----------
    shares : mapping of str to int, units
        What each model takes while it runs: its knee.
    capacity : int, units
        Of the device.
    weights : mapping of str to int, optional
        Model i runs for ``t * weights[i]``; 1 where nothing is said.

    Raises
    ------
    InvalidRequest
        If there are no models or more than `MOST_MODELS`, a share is below 1 or above `capacity`, or a weight below 1.

    References
    ----------
    D-STACK: with three networks of knees 30, 40 and 60 % its scheduler reaches 86 % utilisation; the bound is 86.7 %.
    """
    if not 1 <= len(shares) <= MOST_MODELS:
        raise InvalidRequest(f"bound for {len(shares)} models; give 1 to {MOST_MODELS}")
    weight = {name: (weights or {}).get(name, 1) for name in shares}
    for name, share in shares.items():
        if not 1 <= share <= capacity or weight[name] < 1:
            raise InvalidRequest(
                f"bound: {name} has a share of {share} and a weight of {weight[name]}; give a share of 1 to"
                f" {capacity} and a weight of 1 or more"
            )
    names = sorted(shares, key=lambda name: (-shares[name], name))
    sets = list(_fullest_sets(names, shares, capacity))
    part, times = _solve(
        [[Fraction(name in together) for together in sets] for name in names],
        [Fraction(weight[name]) for name in names],
    )
    used = sum((part * weight[name] * shares[name] for name in names), Fraction(0)) / capacity
    found = tuple((together, time) for together, time in zip(sets, times, strict=True) if time)
    return FairBound(part, used, found)


def _fullest_sets(
    names: Sequence[str], shares: Mapping[str, int], capacity: int
) -> Iterator[tuple[str, ...]]:
    """Every set that fits and to which no further model could be added."""

    def extend(at: int, chosen: tuple[str, ...], left: int) -> Iterator[tuple[str, ...]]:
        if at == len(names):
            if all(shares[name] > left for name in names if name not in chosen):
                yield chosen
            return
        name = names[at]
        if shares[name] <= left:
            yield from extend(at + 1, (*chosen, name), left - shares[name])
        yield from extend(at + 1, chosen, left)

    return extend(0, (), capacity)


def _solve(has: list[list[Fraction]], weights: list[Fraction]) -> tuple[Fraction, list[Fraction]]:
    """Maximise t with ``sum over sets of has[i][s] * x[s] >= weights[i] * t`` and ``sum x <= 1``: the simplex method.

    Doing nothing is feasible, so there is no first phase; Bland's rule keeps it from going in circles.

    Returns
    -------
    Fraction and list of Fraction
        t and x.
    """
    count, rows = len(has[0]), len(has) + 1
    zero, one = Fraction(0), Fraction(1)
    table = [
        [*(-value for value in row), weight, *(Fraction(i == j) for j in range(rows)), zero]
        for i, (row, weight) in enumerate(zip(has, weights, strict=True))
    ]
    table.append([*[one] * count, zero, *(Fraction(j == rows - 1) for j in range(rows)), one])
    gain = [*[zero] * count, one, *[zero] * (rows + 1)]
    basis = [count + 1 + i for i in range(rows)]
    while (enter := next((j for j, value in enumerate(gain[:-1]) if value > 0), None)) is not None:
        leave = min(
            (i for i in range(rows) if table[i][enter] > 0),
            key=lambda i: (table[i][-1] / table[i][enter], basis[i]),
        )
        pivot = table[leave][enter]
        table[leave] = [value / pivot for value in table[leave]]
        for row in [*(table[i] for i in range(rows) if i != leave), gain]:
            factor = row[enter]
            if factor:
                row[:] = [value - factor * by for value, by in zip(row, table[leave], strict=True)]
        basis[leave] = enter
    values = dict(zip(basis, (row[-1] for row in table), strict=True))
    return values.get(count, zero), [values.get(s, zero) for s in range(count)]
