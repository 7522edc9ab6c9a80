"""Recordings: a run of an engine as lines of text, for replay and for people.

The first line is a header with the engine, the format's version and the policy; each further line is one step: the
time, the event and the decisions, as JSON objects whose ``type`` is the class's name. Each engine has a `Format` here.
Reading and writing files is up to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from polymux.core.decision import DECISIONS
from polymux.core.errors import InvalidRequest
from polymux.core.event import EVENTS
from polymux.core.jobs.decision import JobDecision
from polymux.core.jobs.event import JobEvent
from polymux.core.serving.decision import ServingDecision
from polymux.core.serving.event import ServingEvent
from polymux.sched.value_text import decode, exact, from_text, tagged, to_text, untagged


@dataclass(frozen=True, slots=True)
class Step:
    """One call of an engine.

    Parameters
    ----------
    at_ns : int
        The `now` that it was given.
    event : Event, ServingEvent or JobEvent
    decisions : tuple of Decision, ServingDecision or JobDecision
        What it returned.
    """

    at_ns: int
    event: Any
    decisions: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """How the steps of an engine are recorded.

    Parameters
    ----------
    key : str
        In the header, with the version.
    version : int
        Grows with each change after which older recordings cannot be read.
    events, decisions : mapping of str to type
        Classes by their names.
    """

    key: str
    version: int
    events: Mapping[str, type]
    decisions: Mapping[str, type]

    def write_header(self, policy: str) -> str:
        """Write the first line of a recording; `policy` is the text that the policy was loaded by."""
        return to_text({self.key: self.version, "policy": policy})

    def read_step(self, line: str) -> Step:
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
            event=untagged(self.events, values["event"], "event"),
            decisions=tuple(untagged(self.decisions, decision, "decision") for decision in decisions),
        )


def _by_name(types: Iterable[type]) -> dict[str, type]:
    return {kind.__name__: kind for kind in types}


QUEUES = Format("polymux_recording", 2, _by_name(EVENTS), _by_name(DECISIONS))
"""Of the engine of queues."""
REQUESTS = Format(
    "polymux_serving_recording", 1, _by_name(get_args(ServingEvent)), _by_name(get_args(ServingDecision))
)
"""Of the engine of requests."""
JOBS = Format("polymux_jobs_recording", 2, _by_name(get_args(JobEvent)), _by_name(get_args(JobDecision)))
"""Of the engine of jobs."""
FORMATS = (QUEUES, REQUESTS, JOBS)


def read_header(line: str) -> tuple[Format, str]:
    """Read the format and the policy's text from the first line of a recording.

    Raises
    ------
    InvalidRequest
        If the line is no such header, or of another version.
    """
    values = from_text(line)
    found = next((format for format in FORMATS if format.key in values), None)
    policy = values.get("policy")
    if found is None or not isinstance(policy, str):
        raise InvalidRequest(f"{line[:80]!r} is not the first line of a recording of this program")
    if values[found.key] != found.version:
        raise InvalidRequest(
            f"the recording has format version {values[found.key]!r}, this program reads {found.version}; make a new"
            " recording, or use the version of Polymux that made it"
        )
    return found, policy


def write_step(step: Step) -> str:
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
