"""What the simulator says about a live load: the same arrivals, the measured profiles, the same policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from polymux.bench.policies.workload import Served, Workload
from polymux.core.serving.model import ModelName, ServedModel
from polymux.perfmodel.surface import TableSurface
from polymux.planning.run import policy_outcome
from polymux.sim.serving import Load, Scenario, Timestamps, Uniform


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the profiles do not contain: measured once, at capacity, and used for every policy and load.

    Attributes
    ----------
    more_ns : mapping of str to int
        By how much a batch of each model takes longer in the front end at capacity than in its profile: the front end
        and the generator take processor time from the device, and other models' data have taken its caches.
    reply_ns : int
        What a request takes besides waiting and its batch: the way through HTTP.
    """

    more_ns: Mapping[str, int] = field(default_factory=dict)
    reply_ns: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the simulator says."""

    goodput_per_s: float
    admitted_on_time: float


def predict(
    workload: Workload,
    policy: str,
    arrivals: tuple[NDArray[np.int64], NDArray[np.int64]],
    seconds: float,
    load: float,
    calibration: Calibration,
) -> Prediction:
    """Simulate a load; `load` is its rate as a part of the capacity."""
    times, owners = arrivals
    loads = tuple(
        _load(workload, model, times[owners == index], load, calibration)
        for index, model in enumerate(workload.models)
    )
    scenario = Scenario(
        (workload.device,),
        loads,
        round(seconds * 1e9),
        interference=workload.interference,
        keep_spans=False,
    )
    outcome = policy_outcome(policy, scenario)
    on_time = admitted = 0
    for model in workload.models:
        result = outcome.models[_name(model)]
        limit_ns = model.slo_ns - calibration.reply_ns
        on_time += int(np.searchsorted(result.latencies_ns, limit_ns, "right"))
        admitted += result.admitted
    return Prediction(on_time / seconds, on_time / admitted if admitted else 1.0)


def _load(
    workload: Workload, model: Served, times: NDArray[np.int64], load: float, calibration: Calibration
) -> Load:
    surface = replace(model.surface, limit=model.surface.batches[-1])
    more_ns = round(calibration.more_ns.get(model.name, 0) * load)  # also what is refused was read
    served = ServedModel(
        _name(model), model.slo_ns, {workload.device.kind: surface}, max_batch=surface.max_batch
    )
    return Load(
        served,
        Timestamps(times) if len(times) else Uniform(0.0),
        truth={workload.device.kind: _prolonged(surface, more_ns)},
    )


def _prolonged(surface: TableSurface, more_ns: int) -> TableSurface:
    table = tuple(tuple(time_ns + more_ns for time_ns in row) for row in surface.table_ns)
    return replace(surface, table_ns=table)


def _name(model: Served) -> ModelName:
    return ModelName(f"{model.name}/1")
