"""Runs a recording through a fresh engine and compares the decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from polymux.core.errors import BadDecision, InvalidRequest
from polymux.policy import registry
from polymux.policy.jobs import registry as jobs_registry
from polymux.policy.serving import registry as serving_registry
from polymux.sched.engine import Engine
from polymux.sched.jobs.engine import JobEngine
from polymux.sched.recording import JOBS, QUEUES, REQUESTS, Format, Step, read_header
from polymux.sched.serving.engine import ServingEngine


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step at which the replay decided differently.

    Parameters
    ----------
    line : int
        Line of the recording, from 1.
    recorded : Step
    replayed : tuple of decisions
    """

    line: int
    recorded: Step
    replayed: tuple[Any, ...]

    def __str__(self) -> str:
        def listed(decisions: tuple[Any, ...]) -> str:
            return "".join(f"\n    {decision}" for decision in decisions) or " nothing"

        return (
            f"line {self.line}, at {self.recorded.at_ns} ns: {self.recorded.event}\n"
            f"  recorded:{listed(self.recorded.decisions)}\n"
            f"  replayed:{listed(self.replayed)}"
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found.

    Parameters
    ----------
    policy : str
        The recorded policy.
    steps : int
        Steps that were decided as recorded.
    difference : Difference, optional
        Where the replay stopped because the decisions differ.
    truncated : bool
        Whether the last line breaks off, as when the recording process was killed; it was left out.
    """

    policy: str
    steps: int
    difference: Difference | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class _Replayed:
    """What steps of one format are given to: the policy by its text, and the engine around it."""

    load: Callable[[str], Any]
    engine: Callable[[Any], Any]


_REPLAYED = {
    QUEUES.key: _Replayed(registry.load, Engine),
    REQUESTS.key: _Replayed(serving_registry.load, ServingEngine),
    JOBS.key: _Replayed(jobs_registry.load, JobEngine),
}


def replay(lines: Iterable[str], load: Callable[[str], Any] | None = None) -> Replay:
    """Replay a recording until its end or the first difference.

    Parameters
    ----------
    lines : iterable of str
        A header, which says which engine it is of, and steps, each with its line break, as a text file gives them.
    load : callable, optional
        Makes the policy from its text; by default that of the engine's policies which is registered by that name.

    Raises
    ------
    InvalidRequest
        If there is no header, the policy is unknown, or a line other than an unfinished last one cannot be read.
    """
    numbered = enumerate(lines, start=1)
    first = next(numbered, None)
    if first is None:
        raise InvalidRequest(
            "the recording is empty; `polymux up --record FILE` and `polymux simulate --record FILE` write one"
        )
    format_, policy = read_header(first[1])
    replayed = _REPLAYED[format_.key]
    engine = replayed.engine((load or replayed.load)(policy))
    return _compare(policy, numbered, format_, engine.handle)


def _compare(
    policy: str,
    numbered: Iterable[tuple[int, str]],
    format_: Format,
    handle: Callable[[Any, int], Sequence[Any]],
) -> Replay:
    steps = 0
    for number, line in numbered:
        try:
            step = format_.read_step(line)
        except InvalidRequest as error:
            if not line.endswith("\n"):
                return Replay(policy, steps, truncated=True)
            raise InvalidRequest(f"line {number}: {error}") from None
        try:
            decisions = tuple(handle(step.event, step.at_ns))
        except BadDecision as bad:  # the driver recorded what it carried out all the same
            decisions = tuple(bad.decisions)
        if decisions != step.decisions:
            return Replay(policy, steps, Difference(number, step, decisions))
        steps += 1
    return Replay(policy, steps)
