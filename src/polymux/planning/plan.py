"""Plans how many devices a workload needs, and which model goes where with which share."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.errors import InvalidRequest
from polymux.perfmodel.capacity.bound import Bound, bound
from polymux.perfmodel.capacity.causes import Cause, causes
from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.placement import Placement
from polymux.planning.demands import device_kinds, read_demands
from polymux.planning.plan_check import Progress
from polymux.planning.plan_search import PlanOptions, PlanSearch
from polymux.planning.workload import Workload
from polymux.policy.serving import registry
from polymux.sim.serving.arrivals import SECOND_NS
from polymux.sim.serving.outcome import ServingOutcome
from polymux.sim.serving.scenario import MOST_REQUESTS


@dataclass(frozen=True, slots=True)
class Plan:
    """What was planned, and what came of its check.

    Parameters
    ----------
    workload : Workload
    options : PlanOptions
    kinds : tuple of DeviceKind
    demands : tuple of Demand
    placement : Placement
    bound : Bound
        What no placement does without.
    causes : tuple of Cause
        What the devices are due to, the largest first.
    outcome : ServingOutcome, optional
        Of the check; None when it was not made.
    missed : tuple of str
        Models that did not attain what they should.
    simulated : int
        Devices that were simulated until this was found, each run counted.
    """

    workload: Workload
    options: PlanOptions
    kinds: tuple[DeviceKind, ...]
    demands: tuple[Demand, ...]
    placement: Placement
    bound: Bound
    causes: tuple[Cause, ...]
    outcome: ServingOutcome | None
    missed: tuple[str, ...]
    simulated: int

    @property
    def is_met(self) -> bool:
        """Whether every model has a place and attains what it should."""
        return not self.placement.unplaced and not self.missed

    @property
    def cost(self) -> float:
        """Of all devices."""
        costs = {kind.name: kind.cost for kind in self.kinds}
        return sum(costs[device.kind] for device in self.placement.devices)


def make_plan(workload: Workload, options: PlanOptions, progress: Progress | None = None) -> Plan:
    """Plan a workload.

    Parameters
    ----------
    workload : Workload
        The numbers of its devices do not count.
    options : PlanOptions
    progress : callable, optional

    Returns
    -------
    Plan
        Not met when a model has no place, or misses its attainment after all repairs.

    Raises
    ------
    InvalidRequest
        For closed loops, limits of unknown kinds, an unknown policy, and more requests than can be simulated.

    Notes
    -----
    `PlanSearch` tells how.
    """
    registry.load(options.policy)
    kinds = device_kinds(workload.devices, options.limits)
    demands = read_demands(workload.loads)
    _check_size(workload, options)
    search = PlanSearch(workload, options, kinds, demands, progress)
    best = search.run()
    placement = Placement(tuple(best.devices), tuple(best.unplaced))
    found = causes(placement, demands, kinds, caution=best.caution, headroom=best.headroom)
    return Plan(
        workload, options, tuple(kinds), tuple(demands), placement, bound(demands, kinds, options.attainment),
        tuple(found), best.outcome, tuple(best.missed), search.simulated,
    )  # fmt: skip


def _check_size(workload: Workload, options: PlanOptions) -> None:
    requests = (
        sum(load.arrivals.mean_rate_per_s for load in workload.loads) * workload.duration_ns / SECOND_NS
    )
    if options.check and requests > MOST_REQUESTS:
        raise InvalidRequest(
            f"the check would simulate {requests:.3g} requests, more than {MOST_REQUESTS:,};"
            " give a shorter --duration, or --no-check"
        )
