"""Finds a policy for requests by name: in a table of strings, or in entry points ``polymux.serving_policies``.

A new policy is one file and one line in `POLICIES`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.policy.serving.interface import ServingPolicy

POLICIES = {
    "unscheduled": "polymux.policy.serving.unscheduled:Unscheduled",
    "temporal": "polymux.policy.serving.temporal_sharing:TemporalSharing",
    "fixed_batch": "polymux.policy.serving.fixed_batch:FixedBatch",
    "gslice": "polymux.policy.serving.gslice:Gslice",
    "max_throughput": "polymux.policy.serving.max_throughput:MaxThroughput",
    "max_min_fair": "polymux.policy.serving.max_min_fair:MaxMinFair",
    "dstack": "polymux.policy.serving.dstack:DStack",
    "spacetime": "polymux.policy.serving.spacetime.policy:SpaceTime",
}

GROUP = "polymux.serving_policies"


def names() -> list[str]:
    """List the names of all policies: the built-in ones, then those of installed packages."""
    return [*POLICIES, *sorted(point.name for point in entry_points(group=GROUP))]


def summaries() -> dict[str, str]:
    """Map each policy's name to the first line of its documentation, for help texts."""
    return {name: (_factory(name).__doc__ or "").strip().partition("\n")[0] for name in names()}


def load(text: str) -> ServingPolicy:
    """Make a fresh policy.

    Parameters
    ----------
    text : str
        ``"name"`` or ``"name=option"``.

    Raises
    ------
    InvalidRequest
        If no policy has that name, it cannot be loaded, or it does not take that option.
    """
    name, _, option = text.partition("=")
    policy: ServingPolicy = _factory(name).make(option)
    return policy


def _factory(name: str) -> Any:
    found = [POLICIES[name]] if name in POLICIES else []
    found += [point.value for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        raise InvalidRequest(f"serving policy {name!r} is unknown; give one of {', '.join(names())}")
    module, _, attribute = found[0].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(f"serving policy {name!r} cannot be loaded from {found[0]}: {error}") from error
