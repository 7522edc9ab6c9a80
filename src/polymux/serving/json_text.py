"""JSON text to values and back, with the numbers that the protocol needs and JSON lacks.

The fast parser refuses ``NaN`` and ``Infinity``, which clients do send; a text that holds one of these words goes to
the parser of the standard library, which reads them. In answers they are written as bare literals, and only in
tensors that hold such numbers, because a strict client cannot read them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson

from polymux.serving.errors import RequestError

__all__ = ["dump", "dump_array", "parse"]

_LITERALS = (b"NaN", b"Infinity")


def parse(text: bytes | bytearray, max_depth: int) -> Any:
    """Parse a JSON text.

    Parameters
    ----------
    text : bytes or bytearray
        The text in UTF-8.
    max_depth : int
        Deepest nesting that is accepted.

    Returns
    -------
    object
        Dictionaries, lists, strings, numbers, booleans and None.

    Raises
    ------
    RequestError
        400 when the text is not JSON or is nested too deeply.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if not any(word in text for word in _LITERALS):
            raise RequestError(400, f"the request body is not valid JSON: {error}") from None
        value = _parse_with_literals(text)
    # Counting the brackets is far cheaper than walking the values, and flat data has few.
    if text.count(b"[") + text.count(b"{") > max_depth and exceeds_depth(value, max_depth):
        raise RequestError(400, f"the JSON is nested deeper than {max_depth} levels; send flat data instead")
    return value


def _parse_with_literals(data: bytes | bytearray) -> Any:
    try:
        value = json.loads(data)
        if b"\\u" in data:  # half a surrogate pair is no text, and no answer could repeat it
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise RequestError(400, "the JSON is nested too deeply; send flat data instead") from None
    except ValueError as error:  # JSONDecodeError, UnicodeError, numbers with too many digits
        raise RequestError(400, f"the request body is not valid JSON: {error}") from None


def exceeds_depth(value: Any, max_depth: int) -> bool:
    """Whether arrays and objects are nested more than `max_depth` deep.

    Notes
    -----
    Looks at one level after the other, so that hostile nesting cannot exhaust the stack.
    """
    level = [value]
    for _ in range(max_depth + 1):
        containers = [item for item in level if type(item) is list or type(item) is dict]
        if not containers:
            return False
        level = []
        for item in containers:
            if isinstance(item, dict):
                level.extend(item.values())
            else:
                level.extend(item)
    return True


def dump_array(array: np.ndarray[Any, Any]) -> Any:
    """Prepare a tensor for `dump` as the flat array of its elements in row-major order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return orjson.Fragment(json.dumps(flat.tolist()).encode())
    return flat


def dump(value: Any) -> bytes:
    """Write a value as compact JSON; arrays come from `dump_array`."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
