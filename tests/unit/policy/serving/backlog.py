"""Models that always have requests, on devices with flat surfaces: the set-up of the D-STACK paper."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.core.ids import DeviceId
from polymux.core.serving.model import ModelName, ServedModel, ServingDevice
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.policy.serving.registry import load
from polymux.sim.serving import ClosedLoop, Load, Scenario, ServingOutcome, simulate

MS = 1_000_000
MOBILENET = ("mobilenet", 20, 10.0, 25)
ALEXNET = ("alexnet", 30, 8.0, 25)
RESNET50 = ("resnet50", 40, 28.0, 50)
VGG19 = ("vgg19", 50, 55.0, 100)
CONVNETS = (("a", 30, 10.3, 50), ("b", 40, 14.6, 50), ("c", 60, 15.4, 50))
Model = tuple[str, int, float, int]
"""Name, knee in %, time of a batch of 16 in ms, SLO in ms."""


def run(
    policy: str, models: Sequence[Model], seconds: float = 5, devices: int = 1, noise: float = 0.0
) -> ServingOutcome:
    """Simulate an endless backlog of each model."""
    pool = tuple(
        ServingDevice(DeviceId(f"gpu:{index}"), 100, tuple(range(5, 101, 5)), "gpu")
        for index in range(devices)
    )
    loads = tuple(
        Load(
            ServedModel(ModelName(name), slo * MS, {"gpu": FlatKneeSurface(knee, ((16, round(time * MS)),))}),
            ClosedLoop(64 * devices),
        )
        for name, knee, time, slo in models
    )
    scenario = Scenario(pool, loads, round(seconds * 1e9), warmup_ns=round(seconds * 1e8), noise=noise)
    return simulate(load(policy), scenario)


def held(outcome: ServingOutcome, devices: int = 1) -> dict[str, float]:
    """Part of the time for which each model ran, per device."""
    return {
        str(name): model.device_ns / 1e9 / model.seconds / devices for name, model in outcome.models.items()
    }
