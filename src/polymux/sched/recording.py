"""Recordings: a run of the engine as lines of text, for replay and for people.

The first line is a header with the format's version and the policy; each further line is one step: the time, the event
and the decisions, as JSON objects whose ``type`` is the class's name. Reading and writing files is up to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.decision import DECISIONS, Decision
from polymux.core.errors import InvalidRequest
from polymux.core.event import EVENTS, Event
from polymux.sched.value_text import decode, exact, from_text, tagged, to_text, untagged

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
    return to_text({"polymux_recording": VERSION, "policy": policy})


def read_header(line: str) -> str:
    """Read the policy's text from the first line of a recording.

    Raises
    ------
    InvalidRequest
        If the line is no such header, or of another version.
    """
    values = from_text(line)
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
    return to_text(
        {
            "at_ns": step.at_ns,
            "event": tagged(step.event),
            "decisions": [tagged(decision) for decision in step.decisions],
        }
    )


def read_step(line: str) -> Step:
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
    return Step(
        at_ns=decode(int, values["at_ns"], "at_ns"),
        event=untagged(_EVENTS, values["event"], "event"),
        decisions=tuple(untagged(_DECISIONS, decision, "decision") for decision in decisions),
    )
