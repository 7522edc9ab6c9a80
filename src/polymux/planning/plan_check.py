"""Checks a placement by simulation: each device under the policy, with the requests that the router sends it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from math import exp, lgamma, log, log1p

from polymux.core.errors import PolymuxError
from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServingDevice
from polymux.perfmodel.capacity.demand import DeviceKind
from polymux.perfmodel.capacity.placement import PlacedDevice
from polymux.policy.serving import registry
from polymux.sim.serving.cluster import Pool, split
from polymux.sim.serving.outcome import ModelOutcome, ServingOutcome
from polymux.sim.serving.scenario import Scenario
from polymux.sim.serving.simulation import simulate

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is."""

SIMULATING = "simulating devices"
_FEW = 10
_SIGNIFICANT = 0.01
_WORTH_PROCESSES = 16
_CHUNK = 4


def serving_devices(
    devices: Sequence[PlacedDevice], kinds: Sequence[DeviceKind]
) -> tuple[ServingDevice, ...]:
    """Name the devices ``kind:0``, ``kind:1``, ... in their order."""
    of_name = {kind.name: kind for kind in kinds}
    numbers = dict.fromkeys(of_name, 0)
    made = []
    for device in devices:
        kind = of_name[device.kind]
        name = DeviceId(f"{device.kind}:{numbers[device.kind]}")
        numbers[device.kind] += 1
        made.append(ServingDevice(name, kind.units, kind.shares, kind.name, (), kind.memory_nbytes))
    return tuple(made)


def pools_of(devices: Sequence[PlacedDevice], names: Sequence[DeviceId]) -> list[Pool]:
    """Make a pool of each placed device, where its models can be started on the shares of their lanes (or on all).

    A model without requests goes to the first of its devices alone.
    """
    pools = []
    seen: set[str] = set()
    for device, name in zip(devices, names, strict=True):
        weights = {}
        ready = (
            {} if device.free else {ModelName(model): {name: device.shares(model)} for model in device.models}
        )
        for model in device.models:
            rate = device.rate_per_s(model)
            if rate > 0 or model not in seen:
                weights[ModelName(model)] = rate or 1.0
            seen.add(model)
        pools.append(Pool((name,), weights, ready))
    return pools


def simulate_pools(
    policy: str,
    scenario: Scenario,
    pools: Sequence[Pool],
    chosen: Iterable[int] | None = None,
    progress: Progress | None = None,
) -> dict[int, ServingOutcome]:
    """Simulate some pools of a cluster, in several processes when there are many.

    Parameters
    ----------
    policy : str
        As the registry knows it.
    scenario : Scenario
        With the devices and models of all pools.
    pools : sequence of Pool
    chosen : iterable of int, optional
        Indices of the pools to simulate; None: all.
    progress : callable, optional

    Returns
    -------
    dict of int to ServingOutcome
        By index; the same whatever the number of processes. A pool without models has none.
    """
    wanted = range(len(pools)) if chosen is None else sorted(chosen)
    parts = split(scenario, pools)
    work = [(index, part) for index in wanted if (part := parts[index]) is not None]
    found: dict[int, ServingOutcome] = {}
    for index, outcome in _outcomes(policy, work):
        found[index] = outcome
        if progress is not None:
            progress(SIMULATING, len(found), len(work))
    return found


def _outcomes(policy: str, work: list[tuple[int, Scenario]]) -> Iterator[tuple[int, ServingOutcome]]:
    cores = len(os.sched_getaffinity(0))
    if cores == 1 or len(work) < _WORTH_PROCESSES:
        for index, part in work:
            yield index, _simulate((policy, part))
        return
    tasks = [(policy, part) for _, part in work]
    try:
        with ProcessPoolExecutor(cores, initializer=_leave_interrupts) as executor:
            for (index, _), outcome in zip(
                work, executor.map(_simulate, tasks, chunksize=_CHUNK), strict=True
            ):
                yield index, outcome
    except BrokenProcessPool as error:
        raise PolymuxError(
            "a process that simulated devices was killed, perhaps for want of memory; give a shorter duration"
        ) from error


def _leave_interrupts() -> None:
    """Let the process that started this one end it when the user interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _simulate(task: tuple[str, Scenario]) -> ServingOutcome:
    policy, scenario = task
    return simulate(registry.load(policy), scenario)


def is_met(outcome: ModelOutcome, attainment: float) -> bool:
    """Whether a model had as many requests on time as it should.

    Of few requests so many may be late that as many, or more, would be in one of a hundred such runs of a model that
    meets the attainment exactly.
    """
    late = outcome.offered - outcome.on_time
    expected = (1 - attainment) * outcome.offered
    if late <= expected:
        return True
    return expected < _FEW and binomial_tail(late, outcome.offered, 1 - attainment) > _SIGNIFICANT


def binomial_tail(least: int, trials: int, chance: float) -> float:
    """Probability of `least` or more successes."""
    if least <= 0 or chance >= 1:
        return 1.0
    if chance <= 0 or least > trials:
        return 0.0
    below = sum(
        exp(
            lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1)
            + k * log(chance) + (trials - k) * log1p(-chance)
        )
        for k in range(least)
    )  # fmt: skip
    return max(0.0, 1.0 - below)
