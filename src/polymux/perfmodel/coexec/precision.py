"""Units of lower precision: when they may be used, and what they cost in accuracy."""

from __future__ import annotations

from typing import Final, Literal, get_args

from polymux.core.errors import InvalidRequest

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]

PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)

_ROUNDOFF: Final[dict[str, float]] = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}
_LARGEST: Final[dict[str, float]] = {
    "fp64": 1.7976931348623157e308,
    "fp32": 3.4028234663852886e38,
    "tf32": 3.4e38,
    "fp16": 65504.0,
    "bf16": 3.3895313892515355e38,
}


def unit_roundoff(precision: str) -> float:
    """Largest relative error of rounding a number to nearest.

    Raises
    ------
    InvalidRequest
        If there is no such precision.
    """
    return _ROUNDOFF[_known(precision)]


def largest(precision: str) -> float:
    """Largest finite number; what is larger becomes infinite.

    Raises
    ------
    InvalidRequest
        If there is no such precision.
    """
    return _LARGEST[_known(precision)]


def allowed(unit: str, data: str, lowest: str | None = None) -> bool:
    """Say whether a unit may compute for a caller.

    Parameters
    ----------
    unit : Precision
        That the unit rounds its inputs to.
    data : Precision
        Of the caller's arrays.
    lowest : Precision, optional
        What the caller accepts besides: this one, and those that are as accurate and reach as far. None: only what is
        at least as accurate as the data.

    Raises
    ------
    InvalidRequest
        If there is no such precision.

    Notes
    -----
    ``"fp16"`` allows tf32, which is as accurate and reaches further, but not bf16; ``"bf16"`` allows tf32, but not
    fp16, in which numbers beyond 65,504 would become infinite.
    """
    limits = [data] if lowest is None else [data, lowest]
    return any(
        unit_roundoff(unit) <= unit_roundoff(limit) and largest(unit) >= 0.99 * largest(limit)
        for limit in limits
    )


def error_bound(precision: str, depth: int, accumulator: str = "fp32") -> float:
    """Bound of the error of sums of products, relative to the sums of their absolute values.

    Parameters
    ----------
    precision : Precision
        That inputs are rounded to.
    depth : int
        Products in a sum: k of a matrix product; channels times kernel of a convolution.
    accumulator : Precision
        In which is summed up; at least as accurate as the inputs.

    Returns
    -------
    float
        ``|C - exact| <= bound * (|A| @ |B|)`` in each element, as long as nothing overflows. Infinite where the bound
        says nothing any more (k times the roundoff reaches 1).

    Raises
    ------
    InvalidRequest
        If there is no such precision, or the depth is below 1.

    Notes
    -----
    Both inputs are rounded once, and sums in the accumulator. In bf16 the result is taken to be rounded as well, as
    oneDNN does, whose products of bfloat16 are bfloat16.

    References
    ----------
    Higham: Accuracy and Stability of Numerical Algorithms, 2nd edition, SIAM 2002, 3.1 and 3.5 (gamma_k).
    Blanchard, Higham, Lopez, Mary, Pranesh: Mixed precision block fused multiply-add. SISC 42(3), 2020.
    """
    if depth < 1:
        raise InvalidRequest(f"a sum of {depth} products; give 1 or more")
    rounding, adding = unit_roundoff(precision), unit_roundoff(accumulator)
    if rounding < adding:
        adding = rounding
    if depth * adding >= 1:
        return float("inf")
    gamma = depth * adding / (1 - depth * adding)
    if rounding == adding:  # inputs are what they are
        return gamma
    bound = 2 * rounding + rounding**2 + gamma * (1 + rounding) ** 2
    return bound + rounding * (1 + bound) if precision == "bf16" else bound


def _known(precision: str) -> str:
    if precision not in _ROUNDOFF:
        raise InvalidRequest(f"precision {precision!r}; there are {', '.join(PRECISIONS)}")
    return precision
