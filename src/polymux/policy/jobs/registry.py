"""Finds a policy for jobs by name: in a table of strings, or in entry points ``polymux.job_policies``.

A new policy is one file and one line in `POLICIES`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.policy.jobs.interface import JobPolicy

POLICIES = {
    "switchflow": "polymux.policy.jobs.switchflow:SwitchFlow",
    "time_slicing": "polymux.policy.jobs.time_slicing:TimeSlicing",
    "unmanaged": "polymux.policy.jobs.unmanaged:Unmanaged",
}

GROUP = "polymux.job_policies"


def names() -> list[str]:
    """List the names of all policies: the built-in ones, then those of installed packages."""
    return [*POLICIES, *sorted(point.name for point in entry_points(group=GROUP))]


def summaries() -> dict[str, str]:
    """Map each policy's name to the first line of its documentation, for help texts."""
    return {name: (_factory(name).__doc__ or "").strip().partition("\n")[0] for name in names()}


def load(text: str) -> JobPolicy:
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
    policy: JobPolicy = _factory(name).make(option)
    return policy


def _factory(name: str) -> Any:
    found = [POLICIES[name]] if name in POLICIES else []
    found += [point.value for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        raise InvalidRequest(f"job policy {name!r} is unknown; give one of {', '.join(names())}")
    module, _, attribute = found[0].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(f"job policy {name!r} cannot be loaded from {found[0]}: {error}") from error
