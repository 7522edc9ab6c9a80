"""The figures of the D-STACK paper, and what the rule of least device time comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polymux.bench.dstack_figure import (
    KIND,
    MS,
    Figure,
    FlatModel,
    backlog,
    paper_model,
    relaxed,
    work,
)
from polymux.bench.effort import Effort
from polymux.bench.report import Progress
from polymux.core.serving.model import ModelName, ServedModel
from polymux.perfmodel import tables
from polymux.sim.serving import ServingOutcome
from polymux.sim.serving.ideal import IdealOutcome, layered_model, simulate_ideal

LAYERS = 7
"""Kernels of a ConvNet: three convolutions, two poolings, two linear layers."""
NAMES = ("mobilenet", "alexnet", "resnet50", "vgg19")
SLICES = "temporal=mobilenet:1,alexnet:1,resnet50:2,vgg19:2"
PINNED = "dstack=mobilenet:20@16,alexnet:30@16,resnet50:40@16,vgg19:50@16"
NOTES = (
    "backlog: 64 clients of each model without a pause; flat: f(p, b) is the paper's run time from the knee on, and"
    " grows with 1/p below it",
    "over temporal and LP bounds: SLOs twice the paper's (LP: four times), so that fairness and not a deadline decides",
    f"ideal: each ConvNet is {LAYERS} kernels whose parallel work falls linearly, in the mean its knee (our assumption;"
    " with 3 to 100 kernels it comes to 89 to 104 %); its throughput in unit time at the knees, as D-STACK's",
)


def run(effort: Effort, progress: Progress) -> Iterator[Figure]:
    """Compute them."""
    seconds = 40.0 if effort.rounds > 2 else 12.0
    progress("three models of the paper: temporal sharing and the two passes")
    yield from _utilisation(seconds)
    progress("three ConvNets against the ideal scheduler")
    yield from _convnets(seconds)
    progress("four models against temporal sharing")
    yield from _over_temporal(seconds)
    progress("four devices")
    yield _four_devices(seconds)
    progress("the rule of least device time against the linear programme")
    yield from _bounds(seconds)
    progress("four models on the measured V100")
    yield from _measured(seconds)


def convnets() -> tuple[FlatModel, ...]:
    """Make the paper's three ConvNets."""
    return tuple(paper_model(name) for name in ("convnet1", "convnet2", "convnet3"))


def ideal(seconds: float) -> IdealOutcome:
    """Run the ConvNets under the ideal scheduler."""
    models = [layered_model(model.name, model.knee, model.runtime_ns, LAYERS) for model in convnets()]
    return simulate_ideal(models, round(seconds * 1e9))


def ideal_work(outcome: IdealOutcome) -> float:
    """Throughput of the ideal scheduler in percent of a device, as `work`."""
    return sum(
        outcome.runs[model.name] / outcome.seconds * model.knee * model.runtime_ns / 1e9
        for model in convnets()
    )


def held(outcome: ServingOutcome) -> dict[str, float]:
    """Part of the time for which each model ran, in the mean of all devices."""
    return {
        name: model.device_ns / 1e9 / model.seconds / len(outcome.devices)
        for name, model in outcome.models.items()
    }


def _utilisation(seconds: float) -> Iterator[Figure]:
    models = [paper_model(name) for name in ("alexnet", "resnet50", "vgg19")]
    temporal = work(backlog("temporal", models, seconds), models)
    yield Figure("temporal sharing, utilisation", "44 %", 44.3, temporal, "%", "temporal")
    first = work(backlog("dstack=deadlines", models, seconds), models)
    yield Figure("deadline pass alone, utilisation", "60 % [R]", 59.5, first, "%")
    both = work(backlog("dstack", models, seconds), models)
    yield Figure("both passes, utilisation", "74 % [R]", 79.0, both, "%")


def _convnets(seconds: float) -> Iterator[Figure]:
    dstack = work(backlog("dstack", convnets(), seconds), convnets())
    yield Figure("3 ConvNets, utilisation", "~86 %", 86.7, dstack, "%")
    bound = ideal_work(ideal(seconds / 4))
    yield Figure("3 ConvNets, ideal scheduler", "~95 %", 95.0, bound, "%", "ideal")
    yield Figure("3 ConvNets, D-STACK / ideal", "> 90 %", 91.0, 100 * dstack / bound, "%")


def _over_temporal(seconds: float) -> Iterator[Figure]:
    models = [relaxed(paper_model(name), 2) for name in NAMES]
    temporal = backlog(SLICES, models, seconds)
    dstack = backlog("dstack", models, seconds)
    for name, expected in zip(NAMES, (4.0, 4.0, 2.0, 2.0), strict=True):
        key = ModelName(name)
        ratio = dstack.models[key].throughput_per_s / temporal.models[key].throughput_per_s
        yield Figure(f"{name}, D-STACK / temporal", f"{expected:g} x", expected, ratio, "x")


def _four_devices(seconds: float) -> Figure:
    models = [relaxed(paper_model(name), 2) for name in NAMES]
    equal = "temporal=" + ",".join(f"{name}:1" for name in NAMES)
    temporal, dstack = (held(backlog(policy, models, seconds / 2, count=4)) for policy in (equal, "dstack"))
    ratio = sum(dstack.values()) / sum(temporal.values())
    return Figure("4 x T4, D-STACK / temporal", "2.6 x", 2.6, ratio, "x")


def _bounds(seconds: float) -> Iterator[Figure]:
    eight = ("mobilenet", "alexnet", "bert", "resnet50", "vgg19", "resnet18", "inception", "resnext50")
    cases: list[tuple[str, Sequence[FlatModel], float]] = [
        ("30/40/60", convnets(), 2 / 3),
        ("20/30/40/50", [paper_model(name) for name in NAMES], 2 / 3),
        ("25/30/40/50", [paper_model("mobilenet", knee=25), *map(paper_model, NAMES[1:])], 0.60),
        ("eight models", [paper_model(name) for name in eight], 0.345),
    ]
    for name, models, expected in cases:
        slack = [relaxed(model, 4) for model in models]
        times = held(backlog("dstack", slack, 2 * seconds)).values()
        yield Figure(f"LP bound {name}, time held", "", expected, sum(times) / len(times))


def _measured(seconds: float) -> Iterator[Figure]:
    models = [
        ServedModel(
            ModelName(name),
            2 * (tables.model(KIND, name).slo_ns or MS),
            {KIND: tables.surface(KIND, name, max_batch=16)},
        )
        for name in NAMES
    ]
    temporal, dstack = (backlog(policy, models, seconds) for policy in (SLICES, PINNED))
    for name, expected in zip(NAMES, (1.47, 1.94, 1.04, 1.26), strict=True):
        key = ModelName(name)
        ratio = dstack.models[key].throughput_per_s / temporal.models[key].throughput_per_s
        yield Figure(f"{name}, measured surfaces", "", expected, ratio, "x")
    ratio = dstack.throughput_per_s / temporal.throughput_per_s
    yield Figure("all four, measured surfaces", "", 1.51, ratio, "x")
