"""Many devices as a cluster: a pool with an engine for each device, placed models, a router in front."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServingDevice
from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.fit import fit
from polymux.perfmodel.capacity.placement import Placement
from polymux.perfmodel.capacity.spread import spread
from polymux.planning.demands import load_dispersion
from polymux.planning.plan_check import Progress, pools_of, simulate_pools
from polymux.sim.serving.arrivals import SECOND_NS, ClosedLoop
from polymux.sim.serving.cluster import Pool, merge
from polymux.sim.serving.outcome import ServingOutcome
from polymux.sim.serving.scenario import Load, Scenario

MOST_IN_ONE_POOL = 8
"""Devices that one engine schedules; more are a cluster of pools of one device each."""


def simulate_as_cluster(policy: str, scenario: Scenario, progress: Progress | None = None) -> ServingOutcome:
    """Place the models of a scenario on its devices and simulate each device under the policy.

    Parameters
    ----------
    policy : str
        As the registry knows it.
    scenario : Scenario
        With many devices.
    progress : callable, optional

    Returns
    -------
    ServingOutcome

    Raises
    ------
    InvalidRequest
        If a model runs on none of the devices, or the memory does not suffice.

    Notes
    -----
    The models are packed as `polymux plan` does it, with as much headroom as fills the devices, and can be started on
    the shares of their lanes. When the devices are too few for that, the models are spread so that all devices are
    loaded evenly, and each can be started on all shares.
    """
    pools = place_pools(scenario, progress)
    outcomes = simulate_pools(policy, scenario, pools, progress=progress)
    return merge(scenario, outcomes.values())


def place_pools(scenario: Scenario, progress: Progress | None = None) -> list[Pool]:
    """Make a pool of each device, with the models that it gets."""
    demands = [_demand(load) for load in scenario.loads]
    kinds = _kinds(scenario.devices)
    placement = fit(
        demands,
        kinds,
        None if progress is None else lambda done, total: progress("placing models", done, total),
    )
    if placement is not None:
        return _packed(placement, scenario.devices)
    names = _names(scenario.devices)
    return [
        Pool((next(names[found.kind]),), {ModelName(m): rate or 1.0 for m, rate in found.rates_per_s.items()})
        for found in spread(demands, kinds)
    ]


def _packed(placement: Placement, devices: Sequence[ServingDevice]) -> list[Pool]:
    names = _names(devices)
    pools = pools_of(placement.devices, [next(names[device.kind]) for device in placement.devices])
    rest = [Pool((name,), {}) for of_kind in names.values() for name in of_kind]
    return pools + rest


def _names(devices: Sequence[ServingDevice]) -> dict[str, Iterator[DeviceId]]:
    return {
        kind: iter([d.id for d in devices if d.kind == kind])
        for kind in dict.fromkeys(d.kind for d in devices)
    }


def _kinds(devices: Sequence[ServingDevice]) -> list[DeviceKind]:
    counts = Counter(device.kind for device in devices)
    first = {device.kind: device for device in reversed(devices)}
    return [
        DeviceKind(kind, first[kind].units, first[kind].shares, first[kind].memory_nbytes, count)
        for kind, count in counts.items()
    ]


def _demand(load: Load) -> Demand:
    """Make a demand; of a closed loop as if each client were answered within half the SLO."""
    model, arrivals = load.model, load.arrivals
    rate = arrivals.mean_rate_per_s
    if isinstance(arrivals, ClosedLoop):
        rate = arrivals.clients * SECOND_NS / (arrivals.think_ns + model.slo_ns / 2)
    return Demand(
        model.name, rate, model.slo_ns, load.surfaces, load.items, load_dispersion(load), model.memory_nbytes
    )
