"""What the simulator says about a live load: the same arrivals, the measured profiles and costs, the same policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polymux.bench.policies.bare import Machine
from polymux.bench.policies.calibration import Calibration
from polymux.bench.policies.workload import Served, Workload
from polymux.core.errors import PolymuxError
from polymux.core.serving.model import ModelName, ServedModel
from polymux.planning.run import policy_outcome
from polymux.sim.serving import Load, Scenario, Timestamps, Uniform


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
    calibration: Calibration,
    machine: Machine,
) -> Prediction:
    """Simulate a load, on a machine that is as fast as was measured right before and after it."""
    times, owners = arrivals
    loads = tuple(
        _load(workload, model, times[owners == index], machine) for index, model in enumerate(workload.models)
    )
    scenario = Scenario(
        (workload.device,),
        loads,
        round(seconds * 1e9),
        noise=machine.noise,
        interference=workload.interference,
        keep_spans=False,
        host=calibration.host,
    )
    outcome = policy_outcome(policy, scenario)
    return Prediction(outcome.goodput_per_s, outcome.admitted_on_time)


def _pace(machine: Machine, model: str, units: int) -> float:
    try:
        return machine.pace[model, units]
    except KeyError:
        measured = sorted(share for name, share in machine.pace if name == model)
        raise PolymuxError(
            f"how fast model {model} is on a share of {units} units was not measured, only on {measured}; profile it"
            " with the shares that the server has"
        ) from None


def _load(workload: Workload, model: Served, times: NDArray[np.int64], machine: Machine) -> Load:
    surface = replace(model.surface, limit=model.surface.batches[-1])
    name = ModelName(f"{model.name}/1")
    served = ServedModel(name, model.slo_ns, {workload.device.kind: surface}, max_batch=surface.max_batch)
    rows = [
        tuple(round(_pace(machine, model.name, units) * time_ns) for time_ns in row)
        for units, row in zip(surface.units, surface.table_ns, strict=True)
    ]
    truth = replace(surface, table_ns=tuple(rows))
    arrivals = Timestamps(times) if len(times) else Uniform(0.0)
    return Load(served, arrivals, truth={workload.device.kind: truth})
