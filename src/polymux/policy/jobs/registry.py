"""Finds a policy for jobs by name: in a table of strings, or in entry points ``polymux.job_policies``.

A new policy is one file and one line in `POLICIES`.
"""

from __future__ import annotations

from polymux.policy.catalogue import Catalogue
from polymux.policy.jobs.interface import JobPolicy

POLICIES = {
    "switchflow": "polymux.policy.jobs.switchflow:SwitchFlow",
    "time_slicing": "polymux.policy.jobs.time_slicing:TimeSlicing",
    "unmanaged": "polymux.policy.jobs.unmanaged:Unmanaged",
}

GROUP = "polymux.job_policies"

_CATALOGUE = Catalogue("job policy", POLICIES, GROUP)

names = _CATALOGUE.names
summaries = _CATALOGUE.summaries


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
    policy: JobPolicy = _CATALOGUE.find(name).make(option)
    return policy
