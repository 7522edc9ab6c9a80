"""What a piece of an operation is, in the numbers from which its time is predicted."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from polymux.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Features:
    """How much a piece of an operation is.

    Parameters
    ----------
    work : float, operations
        Arithmetic operations; a multiply-add is two.
    sizes : tuple of float
        All above 0, in an order that the operation fixes: m, n and k of a matrix product. The law of a model has a
        term for the work over each size, which is how often something is touched that does not depend on that size.

    Raises
    ------
    InvalidRequest
        If a number is not positive and finite.
    """

    work: float
    sizes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(value > 0 and isfinite(value) for value in (self.work, *self.sizes)):
            raise InvalidRequest(
                f"features: work {self.work}, sizes {self.sizes}; give finite numbers above 0 (an empty piece needs no"
                " prediction)"
            )


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured run of a piece.

    Parameters
    ----------
    features : Features
    seconds : float, s

    Raises
    ------
    InvalidRequest
        If the time is not positive and finite.
    """

    features: Features
    seconds: float

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and isfinite(self.seconds)):
            raise InvalidRequest(f"a run of {self.features} took {self.seconds} s; give a positive time")
