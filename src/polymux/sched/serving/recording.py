"""Recordings of the engine of requests: as those of the engine of queues, with a header and types of their own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import get_args

from polymux.core.errors import InvalidRequest
from polymux.core.serving.decision import ServingDecision
from polymux.core.serving.event import ServingEvent
from polymux.sched.value_text import decode, exact, from_text, tagged, to_text, untagged

VERSION = 1
_KEY = "polymux_serving_recording"
_EVENTS: dict[str, type] = {event.__name__: event for event in get_args(ServingEvent)}
_DECISIONS: dict[str, type] = {decision.__name__: decision for decision in get_args(ServingDecision)}


@dataclass(frozen=True, slots=True)
class RequestStep:
    """One call of the engine of requests.

    Parameters
    ----------
    at_ns : int
        The `now` that it was given.
    event : ServingEvent
    decisions : tuple of ServingDecision
        What it returned.
    """

    at_ns: int
    event: ServingEvent
    decisions: tuple[ServingDecision, ...] = ()


def write_header(policy: str) -> str:
    """Write the first line; `policy` is the text that `polymux.policy.serving.registry.load` was given."""
    return to_text({_KEY: VERSION, "policy": policy})


def is_header(line: str) -> bool:
    """Whether a line is the first one of such a recording, of any version."""
    try:
        return _KEY in json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return False


def read_header(line: str) -> str:
    """Read the policy's text from the first line.

    Raises
    ------
    InvalidRequest
        If the line is no such header, or of another version.
    """
    values = from_text(line)
    if not isinstance(values.get("policy"), str) or _KEY not in values:
        raise InvalidRequest(f"{line[:80]!r} is not the first line of a recording of requests")
    if values[_KEY] != VERSION:
        raise InvalidRequest(
            f"the recording has format version {values[_KEY]!r}, this program reads {VERSION}; make a new recording, or"
            " use the version of Polymux that made it"
        )
    policy: str = values["policy"]
    return policy


def write_step(step: RequestStep) -> str:
    """Write one step as a line of JSON without line break.

    Raises
    ------
    InvalidRequest
        If it has a latency surface of a class that is not in `polymux.sched.value_text.SURFACES`.
    """
    return to_text(
        {
            "at_ns": step.at_ns,
            "event": tagged(step.event),
            "decisions": [tagged(decision) for decision in step.decisions],
        }
    )


def read_step(line: str) -> RequestStep:
    """Read what `write_step` wrote.

    Raises
    ------
    InvalidRequest
        If the line is no JSON, or a field is missing, unknown or of the wrong type; the message names it.
    """
    values = from_text(line)
    exact(values, {"at_ns", "event", "decisions"}, "step")
    decisions = values["decisions"]
    if not isinstance(decisions, list):
        raise InvalidRequest(f"decisions: {decisions!r} is not a list")
    return RequestStep(
        decode(int, values["at_ns"], "at_ns"),
        untagged(_EVENTS, values["event"], "event"),
        tuple(untagged(_DECISIONS, decision, "decision") for decision in decisions),
    )
