"""Recordings: a run of the engine as lines of text, for replay and for people.

The first line is a header with the format's version and the policy; each further line is one step: the time, the event
and the decisions, as JSON objects whose ``type`` is the class's name. Reading and writing files is up to the caller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum, EnumType
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

from polymux.core.decision import DECISIONS, Decision
from polymux.core.errors import InvalidRequest
from polymux.core.event import EVENTS, Event

VERSION = 2

_EVENTS: dict[str, type] = {event.__name__: event for event in EVENTS}
_DECISIONS: dict[str, type] = {decision.__name__: decision for decision in DECISIONS}


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the engine.

    Parameters
    ----------
    at_ns : int
        The `now` that it was given.
    event : Event
    decisions : tuple of Decision
        What it returned.
    """

    at_ns: int
    event: Event
    decisions: tuple[Decision, ...] = ()


def write_header(policy: str) -> str:
    """Write the first line of a recording; `policy` is the text that `polymux.policy.registry.load` was given."""
    return _to_text({"polymux_recording": VERSION, "policy": policy})


def read_header(line: str) -> str:
    """Read the policy's text from the first line of a recording.

    Raises
    ------
    InvalidRequest
        If the line is no such header, or of another version.
    """
    values = _from_text(line)
    if "polymux_recording" not in values or not isinstance(values.get("policy"), str):
        raise InvalidRequest(f"{line[:80]!r} is not the first line of a recording of this program")
    if values["polymux_recording"] != VERSION:
        raise InvalidRequest(
            f"the recording has format version {values['polymux_recording']!r}, this program reads {VERSION}; make a"
            " new recording, or use the version of Polymux that made it"
        )
    policy: str = values["policy"]
    return policy


def write_step(step: Step) -> str:
    """Write one step as a line of JSON without line break."""
    return _to_text(
        {
            "at_ns": step.at_ns,
            "event": _tagged(step.event),
            "decisions": [_tagged(decision) for decision in step.decisions],
        }
    )


def read_step(line: str) -> Step:
    """Read what `write_step` wrote.

    Raises
    ------
    InvalidRequest
        If the line is no JSON, or a field is missing, unknown or of the wrong type; the message names it.
    """
    values = _from_text(line)
    _exact(values, {"at_ns", "event", "decisions"}, "step")
    decisions = values["decisions"]
    if not isinstance(decisions, list):
        raise InvalidRequest(f"decisions: {decisions!r} is not a list")
    return Step(
        at_ns=_decode(int, values["at_ns"], "at_ns"),
        event=_untagged(_EVENTS, values["event"], "event"),
        decisions=tuple(_untagged(_DECISIONS, decision, "decision") for decision in decisions),
    )


def _tagged(value: Any) -> dict[str, Any]:
    return {"type": type(value).__name__, **_encode(value)}


def _untagged(types: Mapping[str, type], values: Any, what: str) -> Any:
    if not isinstance(values, dict) or values.get("type") not in types:
        given = values.get("type") if isinstance(values, dict) else values
        raise InvalidRequest(f"{what} type {given!r} is unknown; there are {', '.join(types)}")
    return _decode(types[values["type"]], {k: v for k, v in values.items() if k != "type"}, values["type"])


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode(kind: Any, value: Any, where: str) -> Any:
    """Build a value of the annotated type `kind` from what JSON holds."""
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        return _decode(next(arg for arg in args if arg is not NoneType), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {key: _decode(args[1], item, f"{where}[{key!r}]") for key, item in value.items()}
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
    raise InvalidRequest(f"{where}: {value!r} is not what {kind!r} allows")


def _decode_fields(kind: Any, values: dict[str, Any], where: str) -> Any:
    hints, required = _signature(kind)
    _exact(values, set(hints), where, required)
    return kind(**{name: _decode(hints[name], value, f"{where}.{name}") for name, value in values.items()})


@cache
def _signature(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    required = frozenset(
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
    )
    return get_type_hints(kind), required


def _exact(
    values: dict[str, Any], allowed: set[str], where: str, required: frozenset[str] | None = None
) -> None:
    unknown = set(values) - allowed
    missing = (allowed if required is None else required) - set(values)
    if unknown or missing:
        parts = [f"lacks {', '.join(sorted(missing))}"] if missing else []
        parts += [f"has the unknown {', '.join(sorted(unknown))}"] if unknown else []
        raise InvalidRequest(f"{where} {' and '.join(parts)}")


def _to_text(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"))


def _from_text(line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{line[:80]!r} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidRequest(f"{line[:80]!r} is no JSON object")
    return values
