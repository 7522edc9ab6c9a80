"""Scenarios in which the policy is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from polymux.core.ids import DeviceId
from polymux.core.serving.model import LatencySurface, ModelName, ServedModel, ServingDevice
from polymux.perfmodel import tables
from polymux.policy.serving.registry import load
from polymux.sim.serving import Arrivals, Load, Poisson, Scenario, ServingOutcome, simulate

MS = 1_000_000
V100 = ServingDevice(DeviceId("v100:0"), 100, tuple(range(10, 101, 10)), "v100")
MODELS = {"alexnet": (1200, 25), "mobilenet": (1200, 25), "resnet50": (500, 50), "vgg19": (250, 100)}
"""Requests per second in the overload of the facts page, and SLO in ms."""


def v100_load(
    name: str,
    rate_per_s: float,
    slo_ms: float,
    *,
    flat: bool = False,
    arrivals: Callable[[float], Arrivals] = Poisson,
    **values: Any,
) -> Load:
    surface: LatencySurface = (
        tables.flat_knee("v100", name) if flat else tables.surface("v100", name, max_batch=16)
    )
    model = ServedModel(ModelName(name), round(slo_ms * MS), {"v100": surface}, **values)
    return Load(model, arrivals(rate_per_s))


def v100_mix(scale: float, *, flat: bool = False, **values: Any) -> tuple[Load, ...]:
    return tuple(
        v100_load(name, rate * scale, slo_ms, flat=flat, **values) for name, (rate, slo_ms) in MODELS.items()
    )


def play(
    loads: tuple[Load, ...], seconds: float = 2.0, policy: str = "spacetime", **values: Any
) -> ServingOutcome:
    values = {"devices": (V100,), "warmup_ns": round(seconds * 1e8), **values}
    return simulate(load(policy), Scenario(loads=loads, duration_ns=round(seconds * 1e9), **values))


def admitted_on_time(outcome: ServingOutcome) -> float:
    """Part of the admitted requests that were answered by their deadlines."""
    models: Mapping[ModelName, Any] = outcome.models
    admitted = sum(model.offered - model.refused for model in models.values())
    return sum(model.on_time for model in models.values()) / admitted
