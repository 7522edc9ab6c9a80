"""How much each of several claimants gets of something that is divided by weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

Name = TypeVar("Name")


class Claim(NamedTuple):
    """A weight of 1 or more, and the most that the claimant can use."""

    weight: int
    limit: int


def fair_shares(capacity: int, claims: Mapping[Name, Claim]) -> dict[Name, int]:
    """Divide `capacity` so that everybody gets the same per weight, unless it is more than he can use.

    What somebody cannot use is divided among the others in the same way (weighted max-min fairness; D. Bertsekas,
    R. Gallager, "Data Networks", 1992, section 6.5.2). Whole numbers: rounding loses less than one per claimant.

    Returns
    -------
    dict
        The shares; their sum is at most `capacity`.
    """
    shares: dict[Name, int] = {}
    rest, weights = capacity, sum(claim.weight for claim in claims.values())
    for name, claim in sorted(claims.items(), key=lambda item: item[1].limit * 10**6 // item[1].weight):
        shares[name] = min(claim.limit, rest * claim.weight // weights)
        rest -= shares[name]
        weights -= claim.weight
    return shares
