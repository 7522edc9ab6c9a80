"""A cluster of a thousand devices that serves ten thousand models: how long it takes to simulate and to plan it."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from polymux import compiled
from polymux.bench.effort import Effort
from polymux.bench.report import Progress, Report, Row
from polymux.bench.simulate import HOW_IT_RAN
from polymux.core.serving.model import ModelName, ServedModel
from polymux.perfmodel import tables
from polymux.perfmodel.capacity.demand import DeviceKind
from polymux.perfmodel.capacity.pack import pack
from polymux.planning.cluster import simulate_as_cluster
from polymux.planning.demands import device_kinds, read_demands
from polymux.planning.plan import make_plan
from polymux.planning.plan_search import PlanOptions
from polymux.planning.workload import Workload
from polymux.planning.workload_devices import DeviceGroup
from polymux.sim.serving import Load, Poisson

TARGET_S = 600.0
POLICY = "spacetime"
KIND = "v100"
MODELS = ("alexnet", "mobilenet", "resnet50", "vgg19")
SLOS_MS = (50, 100, 200, 500)
_FILLED = 0.9
"""Part of the devices that the packed models take."""
_SECONDS, _QUICK_SECONDS = 5.0, 0.5
_QUICK_MODELS = 1_000


def run(effort: Effort, progress: Progress) -> Report:
    """Place, simulate and plan."""
    models, devices = effort.models, effort.models // 10
    seconds = _SECONDS if models > _QUICK_MODELS else _QUICK_SECONDS
    progress(f"requests of {models:,} models that {devices:,} devices can serve")
    workload = _filling(_workload(models, seconds), devices)
    simulated = _simulated(workload, devices, progress)
    planned = _planned(workload, progress)
    results = {"models": models, "devices": devices, **simulated, **planned}
    target = f"< {TARGET_S:g} s"
    rows = (
        Row("simulate", simulated["simulate_s"], "s", target=target, met=simulated["simulate_s"] < TARGET_S),
        Row("  requests", simulated["simulated_requests"], ""),
        Row("  in a second", simulated["simulated_per_s"], "requests"),
        Row("  on time", 100 * simulated["simulated_on_time"], "%"),
        Row("plan", planned["plan_s"], "s", target=target, met=planned["plan_s"] < TARGET_S),
        Row("  one packing", planned["packing_s"], "s"),
        Row("  devices", planned["planned_devices"], "", planned["whole_devices"], "one at a time"),
        Row("  devices", planned["planned_devices"], "", planned["bound_devices"], "bound"),
        Row("  on time", 100 * planned["planned_on_time"], "%"),
    )
    return Report(
        "cluster",
        f"{models:,} models with log-normal rates on {devices:,} simulated {KIND}s, under {POLICY}",
        rows,
        results,
        (
            f"{seconds:g} simulated seconds of Poisson arrivals; SLOs of {', '.join(map(str, SLOS_MS))} ms; one round",
            "one at a time: as many devices as the same packing takes when each batch has a whole device",
            "bound: what no placement does without, in full batches at the best shares, or for the weights",
            HOW_IT_RAN[compiled.is_used()],
        ),
    )


def _workload(models: int, seconds: float) -> Workload:
    rng = np.random.default_rng(4)
    surfaces = {name: tables.surface(KIND, name) for name in MODELS}
    loads = []
    for index in range(models):
        base = MODELS[index % len(MODELS)]
        slo_ms = max(int(rng.choice(SLOS_MS)), 100 if base == "vgg19" else 0)
        rate = float(rng.lognormal(0.0, 1.4))
        model = ServedModel(
            ModelName(f"{base}-{index}"), slo_ms * 1_000_000, {KIND: surfaces[base]}, rate_per_s=rate,
            memory_nbytes=int(rng.integers(50, 600)) << 20,
        )  # fmt: skip
        loads.append(Load(model, Poisson(rate)))
    facts = tables.device(KIND)
    group = DeviceGroup(KIND, 1, facts.units, facts.shares, facts.memory_nbytes)
    return Workload("cluster", (group,), tuple(loads), round(seconds * 1e9), seed=1)


def _filling(workload: Workload, devices: int) -> Workload:
    """Scale the requests so that the packed models take most of the devices."""
    factor, kinds = 50.0, device_kinds(workload.devices, {})
    for _ in range(4):
        used = len(pack(read_demands(workload.scaled(factor).loads), kinds).devices)
        if 0.97 * _FILLED <= used / devices <= 1.03 * _FILLED:
            break
        factor *= _FILLED * devices / used
    return workload.scaled(factor)


def _simulated(workload: Workload, devices: int, progress: Progress) -> dict[str, Any]:
    scenario = workload.scenario(devices, keep_spans=False)
    start = perf_counter()
    outcome = simulate_as_cluster(
        POLICY, scenario, lambda *told: progress("simulate: {}, {:,} of {:,}".format(*told))
    )
    wall_s = perf_counter() - start
    return {
        "simulate_s": wall_s,
        "simulated_requests": outcome.requests,
        "simulated_per_s": outcome.requests / wall_s,
        "simulated_on_time": outcome.attainment,
    }


def _planned(workload: Workload, progress: Progress) -> dict[str, Any]:
    kinds, demands = device_kinds(workload.devices, {}), read_demands(workload.loads)
    start = perf_counter()
    pack(demands, kinds)
    packing_s = perf_counter() - start
    whole = [DeviceKind(kind.name, kind.units, kind.shares[-1:], kind.memory_nbytes) for kind in kinds]
    one_at_a_time = len(pack(demands, whole).devices)
    start = perf_counter()
    plan = make_plan(
        replace(workload, duration_ns=min(workload.duration_ns, 2_000_000_000)),
        PlanOptions(POLICY),
        lambda *told: progress("plan: {}, {:,} of {:,}".format(*told)),
    )
    return {
        "plan_s": perf_counter() - start,
        "packing_s": packing_s,
        "planned_devices": len(plan.placement.devices),
        "whole_devices": one_at_a_time,
        "bound_devices": plan.bound.devices(plan.kinds),
        "plan_met": plan.is_met,
        "planned_on_time": 0.0 if plan.outcome is None else plan.outcome.attainment,
        "bottleneck": plan.causes[0].name,
    }
