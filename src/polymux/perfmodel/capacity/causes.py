"""Why a placement has as many devices as it has: what the work takes, and what each limit adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polymux.perfmodel.capacity.bound import bound, request_cost
from polymux.perfmodel.capacity.demand import Demand, DeviceKind
from polymux.perfmodel.capacity.latency_tables import LatencyTables
from polymux.perfmodel.capacity.pack import pack
from polymux.perfmodel.capacity.placement import Placement

_LEADING = 3


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for devices.

    Parameters
    ----------
    name : str
        ``compute``: the work itself, in full batches on the best shares. ``deadlines``: batches that are not full, and
        shares larger than the best ones, because requests cannot wait. ``bursts``: time kept free because requests
        come unevenly. ``memory``: weights that do not fit beside others. ``granularity``: what is left over on
        devices that are not full.
    cost : float
        Devices, times their cost.
    models : tuple of str
        The models that take most of it.
    """

    name: str
    cost: float
    models: tuple[str, ...]


def causes(
    placement: Placement,
    demands: Sequence[Demand],
    kinds: Sequence[DeviceKind],
    *,
    caution: float,
    headroom: Mapping[str, float],
) -> list[Cause]:
    """Say what the cost of a placement is due to, the largest part first.

    Parameters
    ----------
    placement : Placement
        Of the demands on the kinds.
    demands : sequence of Demand
    kinds : sequence of DeviceKind
    caution, headroom
        As for `pack`.

    Returns
    -------
    list of Cause
        Of together the placement's cost, each 0 or more.

    Notes
    -----
    Limits are taken away one after the other: memory, then bursts (equal distances, no headroom); what the lanes that
    are then left take in all, and last the bound without deadlines. Each step's part is what it saves.
    """
    unlimited = [replace(kind, limit=None) for kind in kinds]
    cost = {kind.name: kind.cost for kind in kinds}
    total = sum(cost[device.kind] for device in placement.devices)
    roomy = [replace(kind, memory_nbytes=0) for kind in unlimited]
    even = [replace(demand, dispersion=0.0) for demand in demands]
    steps = [total]
    has_memory = any(kind.memory_nbytes for kind in kinds) and any(d.memory_nbytes for d in demands)
    for step, asked, given in (("memory", demands, roomy), ("bursts", even, roomy)):
        if step == "memory" and not has_memory:
            steps.append(steps[-1])
            continue
        found = pack(asked, given, caution=caution, headroom=headroom if step == "memory" else None)
        steps.append(min(steps[-1], sum(cost[device.kind] for device in found.devices)))
        if step == "bursts":
            used = sum(cost[device.kind] * device.busy for device in found.devices)
            steps.append(min(steps[-1], used))
    compute = min(steps[-1], bound(demands, kinds).compute)
    steps.append(compute)
    names = ("memory", "bursts", "granularity", "deadlines")
    found_causes = [
        Cause(name, before - after, _leading(name, demands, kinds, placement))
        for name, before, after in zip(names, steps[:-1], steps[1:], strict=True)
    ]
    found_causes.append(Cause("compute", compute, _leading("compute", demands, kinds, placement)))
    return sorted(found_causes, key=lambda cause: -cause.cost)


def _leading(
    name: str, demands: Sequence[Demand], kinds: Sequence[DeviceKind], placement: Placement
) -> tuple[str, ...]:
    tables = LatencyTables()
    weight: dict[str, float] = {}
    busy: dict[str, float] = {}
    if name == "deadlines":
        cost = {kind.name: kind.cost for kind in kinds}
        for device in placement.devices:
            for lane, replica in device.replicas():
                part = replica.busy * lane.units / device.units * cost[device.kind]
                busy[replica.model] = busy.get(replica.model, 0.0) + part
    for demand in demands:
        able = [kind for kind in kinds if kind.name in demand.surfaces]
        if not able:
            continue
        work = min(request_cost(kind, tables.table(demand, kind)) for kind in able) * demand.rate_per_s
        match name:
            case "memory":
                weight[demand.model] = float(demand.memory_nbytes)
            case "bursts":
                weight[demand.model] = work * demand.dispersion
            case "deadlines":
                weight[demand.model] = busy.get(demand.model, 0.0) - work
            case _:
                weight[demand.model] = work
    ordered = sorted((model for model in weight if weight[model] > 0), key=lambda model: -weight[model])
    return tuple(ordered[:_LEADING])
