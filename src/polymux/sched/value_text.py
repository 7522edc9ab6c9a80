"""Values as JSON and back: dataclasses by their fields and annotations, checked as they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum, EnumType
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

from polymux.core.errors import InvalidRequest
from polymux.core.serving.model import LatencySurface
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.perfmodel.surface import TableSurface

SURFACES = (TableSurface, FlatKneeSurface)
"""What may stand where a `LatencySurface` is asked for."""
_SURFACES: dict[str, type] = {surface.__name__: surface for surface in SURFACES}


def tagged(value: Any) -> dict[str, Any]:
    """Turn a dataclass into what JSON can hold, with the name of its class as ``type``.

    Raises
    ------
    InvalidRequest
        If something in it cannot be written.
    """
    return {"type": type(value).__name__, **_encode(value)}


def untagged(types: Mapping[str, type], values: Any, what: str) -> Any:
    """Make the value that `tagged` wrote, of one of these types.

    Raises
    ------
    InvalidRequest
        If it is of another type, or a field is missing, unknown or of the wrong type.
    """
    if not isinstance(values, dict) or values.get("type") not in types:
        given = values.get("type") if isinstance(values, dict) else values
        raise InvalidRequest(f"{what} type {given!r} is unknown; there are {', '.join(types)}")
    return decode(types[values["type"]], {k: v for k, v in values.items() if k != "type"}, values["type"])


def _encode(value: Any) -> Any:
    if hasattr(value, "latency_ns") and type(value) not in SURFACES:
        known = ", ".join(_SURFACES)
        raise InvalidRequest(
            f"a surface of class {type(value).__name__} cannot be recorded; give one of {known}"
        )
    if is_dataclass(value):
        tag = {"type": type(value).__name__} if type(value) in SURFACES else {}
        return tag | {f.name: _encode(getattr(value, f.name)) for f in fields(value) if f.init}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if value is not None and not isinstance(value, str | int | float):
        raise InvalidRequest(f"a {type(value).__name__} cannot be recorded: {value!r}")
    return value


def decode(kind: Any, value: Any, where: str) -> Any:
    """Build a value of the annotated type `kind` from what JSON holds.

    Raises
    ------
    InvalidRequest
        If it holds something else; the message has `where`.
    """
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        return decode(next(arg for arg in args if arg is not NoneType), value, where)
    if origin in (Sequence, frozenset) and isinstance(value, list):
        items = [decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if origin is Sequence else frozenset(items)
    if origin is tuple and isinstance(value, list):
        return tuple(decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {key: decode(args[1], item, f"{where}[{key!r}]") for key, item in value.items()}
    if kind is LatencySurface:
        return untagged(_SURFACES, value, where)
    if is_dataclass(kind) and isinstance(value, dict):
        return _decode_fields(kind, value, where)
    return _decode_plain(kind, value, where)


def _decode_plain(kind: Any, value: Any, where: str) -> Any:
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
    elif isinstance(kind, EnumType):
        if isinstance(value, str) and value in kind.__members__:
            return kind[value]
    elif type(value) is kind:
        return value
    elif kind is float and type(value) is int:
        return float(value)
    raise InvalidRequest(f"{where}: {value!r} is not what {kind!r} allows")


def _decode_fields(kind: Any, values: dict[str, Any], where: str) -> Any:
    hints, required = _signature(kind)
    exact(values, set(hints), where, required)
    return kind(**{name: decode(hints[name], value, f"{where}.{name}") for name, value in values.items()})


@cache
def _signature(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    given = [f for f in fields(kind) if f.init]
    required = frozenset(f.name for f in given if f.default is MISSING and f.default_factory is MISSING)
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in given}, required


def exact(
    values: dict[str, Any], allowed: set[str], where: str, required: frozenset[str] | None = None
) -> None:
    """Check that a table has only the allowed keys, and all that are required (all of them by default)."""
    unknown = set(values) - allowed
    missing = (allowed if required is None else required) - set(values)
    if unknown or missing:
        parts = [f"lacks {', '.join(sorted(missing))}"] if missing else []
        parts += [f"has the unknown {', '.join(sorted(unknown))}"] if unknown else []
        raise InvalidRequest(f"{where} {' and '.join(parts)}")


def to_text(values: dict[str, Any]) -> str:
    """Write one line of JSON."""
    return json.dumps(values, separators=(",", ":"))


def from_text(line: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises
    ------
    InvalidRequest
        If it is none.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{line[:80]!r} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidRequest(f"{line[:80]!r} is no JSON object")
    return values
