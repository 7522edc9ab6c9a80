"""Finds a policy for requests by name: in a table of strings, or in entry points ``polymux.serving_policies``.

A new policy is one file and one line in `POLICIES`.
"""

from __future__ import annotations

from polymux.policy.catalogue import Catalogue
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

_CATALOGUE = Catalogue("serving policy", POLICIES, GROUP)

names = _CATALOGUE.names
summaries = _CATALOGUE.summaries


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
    policy: ServingPolicy = _CATALOGUE.find(name).make(option)
    return policy
