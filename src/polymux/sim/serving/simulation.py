"""Plays a scenario out: carries the decisions of the engine of requests out in virtual time."""

from __future__ import annotations

from polymux.policy.serving.interface import ServingPolicy
from polymux.sim.serving.hosted_driver import HostedDriver
from polymux.sim.serving.outcome import ServingOutcome
from polymux.sim.serving.scenario import Scenario
from polymux.sim.serving.virtual_driver import Progress, Record, VirtualDriver

__all__ = ["Progress", "Record", "simulate"]


def simulate(
    policy: ServingPolicy,
    scenario: Scenario,
    record: Record | None = None,
    progress: Progress | None = None,
) -> ServingOutcome:
    """Serve the requests of a scenario under a policy.

    Parameters
    ----------
    policy : ServingPolicy
        Fresh: it is used up.
    scenario : Scenario
    record : callable, optional
        Is told each step of the engine.
    progress : callable, optional
        Is told what is done and how much of it: first of the models, then of the simulated ns, about a hundred times.

    Returns
    -------
    ServingOutcome

    Raises
    ------
    InvalidRequest
        For a batch of which nothing says how long it takes, models whose weights do not fit into a device's memory, and
        closed loops with more requests than are simulated.
    BadDecision
        When the policy raises, decides what must not be carried out, or asks to be woken without end.

    Notes
    -----
    Of what happens at the same time, batches end first, then requests arrive, then the policy is woken. While nothing
    can start, requests that arrive before the next thing that happens are given to the engine together; each is
    admitted at its own time.
    """
    if scenario.host is not None:
        return HostedDriver(policy, scenario, scenario.host, record, progress).run()
    return VirtualDriver(policy, scenario, record, progress).run()
