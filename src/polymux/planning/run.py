"""Simulates a workload under policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polymux.core.errors import PolymuxError
from polymux.planning.cluster import MOST_IN_ONE_POOL, simulate_as_cluster
from polymux.planning.workload import Workload
from polymux.policy.serving import registry
from polymux.sim.serving.outcome import ServingOutcome
from polymux.sim.serving.scenario import Scenario
from polymux.sim.serving.simulation import Progress, Record, simulate


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """What came of a workload under a policy."""

    policy: str
    outcome: ServingOutcome


def run_policy(
    workload: Workload,
    policy: str,
    *,
    devices: int | None = None,
    keep_spans: bool = True,
    record: Record | None = None,
    progress: Progress | None = None,
) -> PolicyRun:
    """Simulate a workload under a policy: up to 8 devices as one pool, more as a cluster of pools of one device each.

    Parameters
    ----------
    workload : Workload
    policy : str
        ``NAME`` or ``NAME=OPTION``.
    devices : int, optional
        How many of the first kind, instead of those of the workload.
    keep_spans : bool
        Whether the outcome lists every batch.
    record, progress : callable, optional
        As `polymux.sim.serving.simulate` takes them; what is recorded is always one pool.

    Raises
    ------
    InvalidRequest
        For an unknown policy, or devices that cannot hold the models.
    BadDecision
        If the policy decides what must not be carried out.
    """
    scenario = workload.scenario(devices, keep_spans=keep_spans)
    if len(scenario.devices) > MOST_IN_ONE_POOL and record is None:
        return PolicyRun(policy, simulate_as_cluster(policy, scenario, progress))
    return PolicyRun(policy, simulate(registry.load(policy), scenario, record, progress))


def policy_outcome(policy: str, scenario: Scenario) -> ServingOutcome:
    """Simulate a scenario under a policy that is given by its name; raises like `run_policy`."""
    return simulate(registry.load(policy), scenario)


def check_stalled(runs: Sequence[PolicyRun]) -> None:
    """Check that no policy left requests waiting for ever while nothing ran.

    Raises
    ------
    PolymuxError
        If one did.
    """
    for run in runs:
        if run.outcome.stalled:
            raise PolymuxError(
                f"policy {run.policy}: {run.outcome.stalled} requests waited at the end while nothing ran and the"
                " policy had asked for no time to look again; it lacks a `WakeAt`"
            )
