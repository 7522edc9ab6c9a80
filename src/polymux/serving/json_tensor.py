"""The ``data`` of a JSON tensor as an array, without ever changing a value on the way."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from polymux.core.dtype import DType
from polymux.serving.datatype import PROTOCOL_NAMES
from polymux.serving.errors import RequestError

__all__ = ["to_array"]

_INTEGERS = {int}
_REALS = {int, float}


def to_array(name: str, data: Any, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Convert the elements of an input given in JSON.

    Parameters
    ----------
    name : str
        The input's name, for the error message.
    data : object
        The parsed JSON: a flat list in row-major order, lists nested as the shape says, or for a scalar the bare
        value.
    dtype : DType
        The datatype that the request declares.
    shape : tuple of int
        The shape that the request declares.

    Returns
    -------
    numpy.ndarray
        One-dimensional, of the elements in row-major order.

    Raises
    ------
    RequestError
        400 when the number of elements differs from the shape, an element has another type (``1.5`` or ``true`` for
        an INT32), or a number is out of the datatype's range.
    """
    flat = _flatten(name, data, shape)
    if dtype is DType.BF16:
        raise RequestError(400, f"input '{name}': BF16 has no form in JSON; send it as a binary tensor")
    if dtype is DType.BOOL:
        return _booleans(name, flat)
    if np.dtype(dtype.to_numpy()).kind == "f":
        return _reals(name, flat, dtype)
    return _integers(name, flat, dtype)


def _flatten(name: str, data: Any, shape: tuple[int, ...]) -> list[Any]:
    level: list[Any] = [data]
    if not isinstance(data, list):
        if shape != ():
            raise RequestError(400, f"input '{name}': 'data' must be a list, got {_describe(data)}")
        return level
    level = data
    count = _element_count(shape)
    depth = 1
    while level and type(level[0]) is list:
        if depth >= len(shape) or set(map(type, level)) != {list} or set(map(len, level)) != {shape[depth]}:
            raise RequestError(
                400,
                f"input '{name}': 'data' is nested differently from its shape {list(shape)}; "
                "nest it as the shape says, or send it flat",
            )
        level = list(chain.from_iterable(level))
        depth += 1
    if len(level) != count:
        raise RequestError(
            400, f"input '{name}': 'data' has {len(level)} elements, its shape {list(shape)} has {count}"
        )
    return level


def _element_count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _booleans(name: str, flat: list[Any]) -> np.ndarray[Any, Any]:
    for index, value in enumerate(flat):
        if type(value) is not bool and not (type(value) is int and value in (0, 1)):
            raise _bad_element(name, index, value, DType.BOOL)
    return np.array(flat, dtype=np.bool_)


def _integers(name: str, flat: list[Any], dtype: DType) -> np.ndarray[Any, Any]:
    if flat and set(map(type, flat)) != _INTEGERS:
        index = next(i for i, value in enumerate(flat) if type(value) is not int)
        raise _bad_element(name, index, flat[index], dtype)
    target = np.dtype(dtype.to_numpy())
    bounds = np.iinfo(target)
    try:
        return np.array(flat, dtype=target)
    except OverflowError:
        index = next(i for i, value in enumerate(flat) if not bounds.min <= value <= bounds.max)
        raise _bad_element(name, index, flat[index], dtype) from None


def _reals(name: str, flat: list[Any], dtype: DType) -> np.ndarray[Any, Any]:
    if flat and not set(map(type, flat)) <= _REALS:
        index = next(i for i, value in enumerate(flat) if type(value) not in _REALS)
        raise _bad_element(name, index, flat[index], dtype)
    target = np.dtype(dtype.to_numpy())
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype=np.float64).astype(target)
    except (OverflowError, FloatingPointError):
        largest = float(np.finfo(target).max)
        index = next(i for i, value in enumerate(flat) if largest < abs(value) != float("inf"))
        raise _bad_element(name, index, flat[index], dtype) from None


def _bad_element(name: str, index: int, value: Any, dtype: DType) -> RequestError:
    return RequestError(
        400,
        f"input '{name}': element {index} is {_describe(value)}, which {PROTOCOL_NAMES[dtype]} cannot hold",
    )


def _describe(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
