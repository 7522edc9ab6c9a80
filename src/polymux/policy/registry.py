"""Finds a policy by name: in a table of strings, in entry points ``polymux.policies`` of installed packages, in a file.

A new policy is one file and one line in `POLICIES`. Looking into installed packages happens here only, while a server,
a replay or a simulation is put together; policies and the engine never come here.
"""

from __future__ import annotations

from inspect import isabstract
from runpy import run_path
from typing import Any

from polymux.core.errors import InvalidRequest
from polymux.policy.catalogue import Catalogue
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

_CATALOGUE = Catalogue("policy", POLICIES, GROUP, ", or a file that ends with .py")

names = _CATALOGUE.names
summaries = _CATALOGUE.summaries


def load(text: str = DEFAULT) -> Policy:
    """Make a fresh policy.

    Parameters
    ----------
    text : str
        ``"name"`` or ``"name=option"``, for example ``"pinned=opencl:0"``; instead of a name the path of a Python file
        that ends with ``.py`` and defines one policy.

    Raises
    ------
    InvalidRequest
        If no policy has that name, two have it, the file cannot be read or defines none or several, or it does not take
        that option.
    """
    name, _, option = text.partition("=")
    factory = _from_file(name) if name.endswith(".py") else _CATALOGUE.find(name)
    policy: Policy = factory.make(option)
    return policy


def _from_file(path: str) -> Any:
    module = f"polymux_policy_{path.rpartition('/')[2].removesuffix('.py')}"
    try:
        values = run_path(path, run_name=module)
    except Exception as error:  # whatever the file does
        raise InvalidRequest(f"policy file {path!r} cannot be loaded: {error!r}") from error
    found = [
        value
        for value in values.values()
        if isinstance(value, type) and value.__module__ == module and not isabstract(value)
        if hasattr(value, "make") and hasattr(value, "decide")
    ]
    if len(found) != 1:
        names = ", ".join(value.__name__ for value in found) or "none"
        raise InvalidRequest(
            f"policy file {path!r} has to define one class with 'make' and 'decide', such as a child of"
            f" polymux.policy.assignment.AssignmentPolicy; it defines {names}"
        )
    return found[0]
