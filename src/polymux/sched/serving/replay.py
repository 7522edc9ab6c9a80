"""Runs a recording of the engine of requests through a fresh one and compares the decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polymux.core.errors import InvalidRequest
from polymux.policy.serving import registry
from polymux.policy.serving.interface import ServingPolicy
from polymux.sched.replay import Replay, compare
from polymux.sched.serving.engine import ServingEngine
from polymux.sched.serving.recording import read_header, read_step


def replay_requests(lines: Iterable[str], load: Callable[[str], ServingPolicy] = registry.load) -> Replay:
    """Replay a recording until its end or the first difference.

    Parameters
    ----------
    lines : iterable of str
        A header and steps, each with its line break, as a text file gives them.
    load : callable
        Makes the policy from its text.

    Raises
    ------
    InvalidRequest
        If there is no header, the policy is unknown, or a line other than an unfinished last one cannot be read.
    """
    numbered = enumerate(lines, start=1)
    first = next(numbered, None)
    if first is None:
        raise InvalidRequest("the recording is empty; `polymux simulate --record FILE` writes one")
    policy = read_header(first[1])
    return compare(policy, numbered, read_step, ServingEngine(load(policy)).handle)
