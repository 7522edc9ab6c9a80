"""Clusters: many pools of devices with an engine each, and a router in front that splits the requests among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.serving.event import (
    InstanceFailed,
    InstanceReady,
    ModelAdded,
    ModelRemoved,
    ServingDeviceAdded,
    ServingDeviceLost,
    ServingEvent,
)
from polymux.core.serving.model import ModelName, ServingDevice
from polymux.policy.serving.interface import ServingPolicy
from polymux.sim.serving.arrivals import SECOND_NS, ClosedLoop, Times
from polymux.sim.serving.outcome import ModelOutcome, ServingOutcome
from polymux.sim.serving.scenario import Load, Scenario
from polymux.sim.serving.simulation import simulate

_SEEDS_APART = 1_000_003


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices that one engine schedules.

    Parameters
    ----------
    devices : tuple of DeviceId
        Of the scenario.
    weights : mapping of ModelName to float
        The models that are served here, and how much of their requests comes here relative to other pools; above 0.
    ready : mapping of ModelName to mapping of DeviceId to tuple of int, optional
        The shares on which a model can be started; models that are not named can be on all.
    """

    devices: tuple[DeviceId, ...]
    weights: Mapping[ModelName, float]
    ready: Mapping[ModelName, Mapping[DeviceId, tuple[int, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Routed:
    """Arrivals that a router sends to a pool; unlike a trace there may be none."""

    times: Times
    rate_per_s: float

    @property
    def mean_rate_per_s(self) -> float:
        """Requests per second that the router expects to send here."""
        return self.rate_per_s

    def times_ns(self, rng: np.random.Generator, duration_ns: int) -> Times:  # noqa: ARG002
        """All arrivals in ``[0, duration_ns)``."""
        return self.times[self.times < duration_ns]

    def scaled(self, factor: float) -> Routed:
        """Not possible: it is the whole scenario that is scaled, before its requests are split."""
        raise InvalidRequest(f"arrivals behind a router cannot be scaled by {factor}; scale the scenario")


def route(requests: int, weights: Sequence[float]) -> NDArray[np.int64]:
    """Choose a pool for each of a model's requests, in the order of their arrival.

    Parameters
    ----------
    requests : int
    weights : sequence of float
        One for each pool, 0 or more, not all 0.

    Returns
    -------
    array of int64, shape (requests,)
        Indices of pools. Each prefix of it has each pool as often as its weight says, to within about one.

    References
    ----------
    Waldspurger and Weihl, Stride scheduling, MIT/LCS/TM-528, 1995.
    """
    parts = np.asarray(weights, np.float64)
    parts = parts / parts.sum()
    counts = np.where(parts > 0, np.ceil(requests * parts).astype(np.int64) + 1, 0)
    owners = np.repeat(np.arange(len(parts)), counts)
    turns = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    passes = (turns + 0.5) / parts[owners]
    return np.asarray(owners[np.argsort(passes, kind="stable")][:requests], np.int64)


def simulate_cluster(
    make_policy: Callable[[], ServingPolicy], scenario: Scenario, pools: Sequence[Pool]
) -> ServingOutcome:
    """Serve the requests of a scenario on pools, each with a fresh policy of its own.

    Parameters
    ----------
    make_policy : callable
    scenario : Scenario
        With all devices and models.
    pools : sequence of Pool

    Returns
    -------
    ServingOutcome
        Of all pools together; batches are numbered in each pool by itself.

    Raises
    ------
    InvalidRequest
        As `split`, and as `simulate`.
    """
    parts = split(scenario, pools)
    return merge(scenario, [simulate(make_policy(), part) for part in parts if part is not None])


def split(scenario: Scenario, pools: Sequence[Pool]) -> list[Scenario | None]:
    """Split a scenario into one for each pool; None for a pool without models, where nothing happens.

    The requests of a model are made as in the whole scenario, then sent to its pools by `route`. A pool all of whose
    devices are lost gets none from then on, as long as another one has the model.

    Raises
    ------
    InvalidRequest
        If a device is in no pool or in several, a pool names what the scenario does not have, a weight is not above 0,
        or a model is in no pool.
    """
    _check(scenario, pools)
    loads: list[list[Load]] = [[] for _ in pools]
    homes: dict[ModelName, list[int]] = {}
    for index, pool in enumerate(pools):
        for model in pool.weights:
            homes.setdefault(model, []).append(index)
    dead_ns = _dead(scenario, pools)
    for index, load in enumerate(scenario.loads):
        home = homes[load.model.name]
        weights = [pools[i].weights[load.model.name] for i in home]
        parts = _split_arrivals(scenario, index, weights, [dead_ns.get(i) for i in home])
        for i, part in zip(home, parts, strict=True):
            loads[i].append(_load(load, part, pools[i]))
    devices = {device.id: device for device in scenario.devices}
    return [
        _part(scenario, index, [devices[name] for name in pool.devices], of) if of else None
        for index, (pool, of) in enumerate(zip(pools, loads, strict=True))
    ]


def merge(scenario: Scenario, outcomes: Iterable[ServingOutcome]) -> ServingOutcome:
    """Put the outcomes of a scenario's parts together."""
    seconds = (scenario.duration_ns - scenario.warmup_ns) / SECOND_NS
    names = [load.model.name for load in scenario.loads]
    slos = {load.model.name: load.model.slo_ns for load in scenario.loads}
    found: dict[ModelName, list[ModelOutcome]] = {name: [] for name in names}
    whole = ServingOutcome({}, {}, [], seconds)
    for outcome in outcomes:
        for name, model in outcome.models.items():
            found[name].append(model)
        whole.devices.update(outcome.devices)
        whole.spans += outcome.spans
        whole.requests += outcome.requests
        whole.stalled += outcome.stalled
    whole.models.update({name: _sum(name, slos[name], seconds, parts) for name, parts in found.items()})
    whole.devices = {
        device.id: whole.devices[device.id] for device in scenario.devices if device.id in whole.devices
    }
    whole.spans.sort(key=lambda span: (span.end_ns, span.start_ns, span.device))
    return whole


def _sum(name: ModelName, slo_ns: int, seconds: float, parts: list[ModelOutcome]) -> ModelOutcome:
    total = ModelOutcome(name, slo_ns, seconds)
    for part in parts:
        for counted in (
            "offered", "refused", "answered", "on_time", "failed", "unfinished", "batches", "items", "device_ns",
            "unit_ns", "throughput_per_s",
        ):  # fmt: skip
            setattr(total, counted, getattr(total, counted) + getattr(part, counted))
    if parts:
        total.latencies_ns = np.sort(np.concatenate([part.latencies_ns for part in parts]))
    return total


def _check(scenario: Scenario, pools: Sequence[Pool]) -> None:
    if scenario.host is not None:
        raise InvalidRequest(
            "cluster: a front end on the cores of a device cannot be split; leave out the host"
        )
    devices = {device.id for device in scenario.devices}
    models = {load.model.name for load in scenario.loads}
    seen: set[DeviceId] = set()
    placed: set[ModelName] = set()
    for pool in pools:
        for name in pool.devices:
            if name not in devices or name in seen:
                what = "in two pools" if name in devices else "not in the scenario"
                raise InvalidRequest(f"cluster: device {name} is {what}; name each of its devices once")
            seen.add(name)
        for model, weight in pool.weights.items():
            if model not in models:
                raise InvalidRequest(
                    f"cluster: model {model} is not in the scenario; leave it out of the pool"
                )
            if not 0 < weight < float("inf"):
                raise InvalidRequest(f"cluster: model {model} has the weight {weight}; give more than 0")
            placed.add(model)
    if devices - seen:
        raise InvalidRequest(f"cluster: device {min(devices - seen)} is in no pool; put each into one")
    if models - placed:
        raise InvalidRequest(
            f"cluster: model {min(models - placed)} is in no pool; put each into at least one"
        )


def _dead(scenario: Scenario, pools: Sequence[Pool]) -> dict[int, int]:
    """Time at which the last device of a pool is lost, for pools that lose all and get none back."""
    lost: dict[DeviceId, int] = {}
    for at, event in sorted(scenario.events, key=lambda pair: pair[0]):
        if isinstance(event, ServingDeviceLost):
            lost[event.device] = at
        elif isinstance(event, ServingDeviceAdded):
            lost.pop(event.device.id, None)
    return {
        index: max(lost[name] for name in pool.devices)
        for index, pool in enumerate(pools)
        if pool.devices and all(name in lost for name in pool.devices)
    }


def _split_arrivals(
    scenario: Scenario, index: int, weights: list[float], dead_ns: list[int | None]
) -> list[ClosedLoop | Routed]:
    load = scenario.loads[index]
    total = sum(weights)
    if isinstance(load.arrivals, ClosedLoop):
        clients = np.bincount(route(load.arrivals.clients, weights), minlength=len(weights)).tolist()
        empty = Routed(np.empty(0, np.int64), 0.0)
        return [replace(load.arrivals, clients=count) if count else empty for count in clients]
    times = load.arrivals.times_ns(np.random.default_rng([scenario.seed, index]), scenario.duration_ns)
    owners = np.empty(len(times), np.int64)
    edges = sorted({0, *(at for at in dead_ns if at is not None)})
    for start, end in zip(edges, [*edges[1:], scenario.duration_ns], strict=True):
        low, high = np.searchsorted(times, [start, end])
        alive = [
            0.0 if at is not None and at <= start else weight
            for at, weight in zip(dead_ns, weights, strict=True)
        ]
        owners[low:high] = route(int(high - low), alive if any(alive) else weights)
    rate = load.arrivals.mean_rate_per_s / total
    return [Routed(times[owners == i], rate * weight) for i, weight in enumerate(weights)]


def _load(load: Load, arrivals: ClosedLoop | Routed, pool: Pool) -> Load:
    model, ready = load.model, load.ready
    part = 1.0 if not model.rate_per_s else arrivals.mean_rate_per_s / model.rate_per_s
    if model.name in pool.ready:
        ready = pool.ready[model.name]
    elif ready is not None:
        ready = {name: shares for name, shares in ready.items() if name in pool.devices}
    rate = model.rate_per_s * part if not isinstance(arrivals, ClosedLoop) else model.rate_per_s
    return replace(load, model=replace(model, rate_per_s=rate), arrivals=arrivals, ready=ready)


def _part(scenario: Scenario, index: int, devices: list[ServingDevice], loads: list[Load]) -> Scenario:
    models = {load.model.name for load in loads}
    names = {device.id for device in devices}
    return replace(
        scenario,
        devices=tuple(devices),
        loads=tuple(loads),
        seed=scenario.seed * _SEEDS_APART + index,
        slowdowns=tuple(slow for slow in scenario.slowdowns if slow.model in models),
        events=tuple((at, event) for at, event in scenario.events if _concerns(event, names, models)),
    )


def _concerns(event: ServingEvent, devices: set[DeviceId], models: set[ModelName]) -> bool:
    match event:
        case ServingDeviceLost(device, _):
            return device in devices
        case ServingDeviceAdded(device):
            return device.id in devices
        case ModelAdded(model):
            return model.name in models
        case ModelRemoved(model):
            return model in models
        case InstanceReady(model, device, _) | InstanceFailed(model, device, _, _):
            return model in models and device in devices
        case _:
            return False
