"""The ``parameters`` objects of requests, tensors and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polymux.serving.errors import RequestError

__all__ = ["boolean", "parameters_of", "unsigned"]

_GREATEST = 2**64 - 1


def parameters_of(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the ``parameters`` of a request's object; an empty dictionary when it has none.

    Raises
    ------
    RequestError
        400 when they are not an object, or a value is neither a string, a number nor a boolean.
    """
    parameters = item.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(400, f"{where}: 'parameters' must be an object")
    for key, value in parameters.items():
        if not isinstance(value, str | int | float | bool):
            raise RequestError(400, f"{where}: parameter '{key:.40}' must be a string, a number or a boolean")
    return parameters


def unsigned(parameters: Mapping[str, Any], key: str) -> int:
    """Return a parameter that is a whole number from 0 to 2^64 - 1; 0 when it is absent."""
    value = parameters.get(key, 0)
    if type(value) is not int or not 0 <= value <= _GREATEST:
        raise RequestError(400, f"parameter '{key}' must be a whole number of 0 or more, got {value!r:.40}")
    return value


def boolean(parameters: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return a parameter that is true or false."""
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise RequestError(400, f"parameter '{key}' must be true or false, got {value!r:.40}")
    return value
