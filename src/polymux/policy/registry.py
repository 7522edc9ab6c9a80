"""Finds a policy by name: a table of strings, then the entry points ``polymux.policies`` of installed packages.

A new policy is one file and one line in `POLICIES`. Looking into installed packages happens here only, while a server,
a replay or a simulation is put together; policies and the engine never come here.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.policy.interface import Policy

DEFAULT = "round_robin"

POLICIES = {
    "round_robin": "polymux.policy.round_robin:RoundRobin",
    "least_loaded": "polymux.policy.least_loaded:LeastLoaded",
    "pinned": "polymux.policy.pinned:Pinned",
    "memory_aware": "polymux.policy.memory_aware:MemoryAware",
    "weighted_fair": "polymux.policy.weighted_fair:WeightedFair",
    "elastic": "polymux.policy.elastic:Elastic",
}

GROUP = "polymux.policies"


def names() -> list[str]:
    """List the names of all policies: the built-in ones, then those of installed packages."""
    return [*POLICIES, *(point.name for point in _installed())]


def summaries() -> dict[str, str]:
    """Map each policy's name to the first sentence of its documentation, for help texts."""
    return {name: (_factory(name).__doc__ or "").strip().partition("\n")[0] for name in names()}


def load(text: str = DEFAULT) -> Policy:
    """Make a fresh policy.

    Parameters
    ----------
    text : str
        ``"name"`` or ``"name=option"``, for example ``"pinned=opencl:0"``.

    Raises
    ------
    InvalidRequest
        If no policy has that name, two have it, or it does not take that option.
    """
    name, _, option = text.partition("=")
    policy: Policy = _factory(name).make(option)
    return policy


def _factory(name: str) -> Any:
    found = [POLICIES[name]] if name in POLICIES else []
    found += [point.value for point in _installed() if point.name == name]
    if not found:
        raise InvalidRequest(f"policy {name!r} is unknown; give one of {', '.join(names())}")
    if len(found) > 1:
        raise InvalidRequest(
            f"policy {name!r} is defined twice, by {' and '.join(found)}; uninstall one of them"
        )
    module, _, attribute = found[0].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(f"policy {name!r} cannot be loaded from {found[0]}: {error}") from error


def _installed() -> Iterator[EntryPoint]:
    return iter(sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)))
