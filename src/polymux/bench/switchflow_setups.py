"""The set-ups of `polymux bench switchflow`: requests next to training, two trainings, and what deadlines leave."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polymux.bench.switchflow_models import (
    CPU_SPEED,
    MIB,
    MOVE_MS,
    MS,
    PEAK_MIB,
    STATE_MIB,
    STEP_MS,
    request,
    training,
)
from polymux.core.ids import DeviceId
from polymux.core.jobs.model import EVERYWHERE, JobDevice, JobId, JobSpec, PreemptionLevel
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel import tables
from polymux.policy.serving.registry import load
from polymux.sim.jobs import JobLoad, JobsScenario, RequestLoad, TaskTrace
from polymux.sim.serving import Load, Poisson, Scenario, simulate

SECOND = 1000 * MS
GIB = 1 << 30
MEMORY = {"v100": 16 * GIB, "2080ti": 11 * GIB, "1080ti": 11 * GIB, "cpu": 64 * GIB}
BANDWIDTH = 10e9
"""Of PCIe 3 x16, bytes/s, as the paper's moves come to for its larger models."""
LEVELS = (*EVERYWHERE, PreemptionLevel.LAUNCHES)


@dataclass(frozen=True, slots=True)
class Setup:
    """One set-up.

    Parameters
    ----------
    name : str
    scenario : JobsScenario
    load : float
        Part of the device's time that the requests take.
    tenfold : bool
        Whether the paper says an order of magnitude.
    """

    name: str
    scenario: JobsScenario
    load: float = 0.0
    tenfold: bool = False


def device(kind: str, index: int = 0) -> JobDevice:
    """Make a device of a kind."""
    name = DeviceId(f"{kind}:{index}")
    if kind == "cpu":
        return JobDevice(name, 100, MEMORY[kind], kind, memory="host")
    return JobDevice(name, 100, MEMORY[kind], kind, LEVELS, "own", BANDWIDTH)


def trainer(kind: str, model: str, name: str = "", priority: int = 0) -> JobLoad:
    """Training of a model; speeds are relative to a kind of device."""
    program = training(kind, model)
    speeds = {
        other: STEP_MS[kind, model] / STEP_MS[other, model] for other in MEMORY if (other, model) in STEP_MS
    }
    spec = JobSpec(
        JobId(name or model),
        name or model,
        priority,
        memory_nbytes=STATE_MIB[model] * MIB,
        peak_nbytes=PEAK_MIB[model] * MIB,
        levels=LEVELS,
        boundary_ns=program.longest_boundary_ns,
        launches_ns=program.longest_kernel_ns,
        speeds=speeds | {"cpu": CPU_SPEED},
    )
    return JobLoad(spec, program, move_ns=MOVE_MS[model] * MS)


def beside_training(kind: str, trained: str, served: str, load: float, seconds: float) -> Setup:
    """Requests that take a part of a device's time, and training in the background."""
    program = request(kind, served)
    gpu = device(kind)
    requests = RequestLoad(
        served, gpu.id, program, Poisson(load * SECOND / program.run_ns), priority=1, memory_nbytes=GIB
    )
    scenario = JobsScenario(
        (gpu,), (trainer(kind, trained),), (requests,), round(seconds * SECOND), 1, SECOND
    )
    return Setup(
        f"{kind}: {served} at {100 * load:.0f} %, {trained} trains",
        scenario,
        load,
        tenfold=trained == "vgg16",
    )


def two_trainings(second: str, seconds: float) -> Setup:
    """Training on a 2080 Ti; a second one of higher priority comes, which does not fit beside it, and goes again."""
    total = round(seconds * SECOND)
    low = trainer("2080ti", "resnet50", "low")
    high = replace(trainer("2080ti", "vgg16", "high", 1), open_ns=total // 4, close_ns=3 * total // 4)
    devices = (device("2080ti"),) if not second else (device("2080ti"), device(second))
    where = f" and {second}" if second else ""
    return Setup(f"2080ti{where}: vgg16 over resnet50", JobsScenario(devices, (low, high), (), total, 1))


def equal_trainings(seconds: float) -> Setup:
    """Two trainings of one priority on a 2080 Ti, which do not fit together."""
    jobs = (trainer("2080ti", "resnet50"), trainer("2080ti", "vgg16"))
    scenario = JobsScenario((device("2080ti"),), jobs, (), round(seconds * SECOND), 1)
    return Setup("2080ti: vgg16 beside resnet50", scenario)


def harvest(seconds: float) -> Setup:
    """Training in what the batches of four models under deadlines leave of a V100, as spacetime plans them."""
    facts = tables.device("v100")
    serving = ServingDevice(DeviceId("v100:0"), facts.units, facts.shares, "v100")
    rates = {"mobilenet": 120.0, "alexnet": 120.0, "resnet50": 50.0, "vgg19": 15.0}
    loads = tuple(
        Load(
            ServedModel(ModelName(name), 100 * MS, {"v100": tables.surface("v100", name)}, rate_per_s=rate),
            Poisson(rate),
        )
        for name, rate in rates.items()
    )
    served = simulate(load("spacetime"), Scenario((serving,), loads, round(seconds * SECOND), seed=1))
    spans = _merged(sorted((span.start_ns, span.end_ns) for span in served.spans))
    busy = sum(length for _, length in spans) / (seconds * SECOND)
    trace = TaskTrace("batches", DeviceId("v100:0"), spans, priority=1, slack_ns=MS)
    scenario = JobsScenario(
        (device("v100"),), (trainer("v100", "vgg16"),), (trace,), round(seconds * SECOND), 1
    )
    return Setup("v100: four models under spacetime, vgg16 trains", scenario, busy)


def _merged(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Times at which at least one batch runs: beginnings and lengths."""
    out: list[tuple[int, int]] = []
    for start, end in spans:
        if out and start <= out[-1][0] + out[-1][1]:
            begin, length = out[-1]
            out[-1] = (begin, max(length, end - begin))
        else:
            out.append((start, end - start))
    return tuple(out)
