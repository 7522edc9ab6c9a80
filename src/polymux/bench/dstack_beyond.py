"""Where D-STACK stops, and our policy `spacetime` on the same workloads."""

from __future__ import annotations

from collections.abc import Iterator

from polymux.bench.dstack_figure import (
    BATCH,
    KIND,
    MS,
    Figure,
    backlog,
    open_loop,
    paper_model,
    relaxed,
    work,
)
from polymux.bench.dstack_paper import NAMES, PINNED, SLICES, convnets, ideal, ideal_work
from polymux.bench.effort import Effort
from polymux.bench.report import Progress
from polymux.core.serving.model import LatencySurface, ModelName, ServedModel
from polymux.perfmodel import tables
from polymux.perfmodel.flat_knee import FlatKneeSurface
from polymux.sim.serving import Load, Poisson, Timestamps

RATES = (1200.0, 1200.0, 500.0, 250.0)
"""Requests per second of the models in `NAMES`, in the overload of the facts."""
SUSTAINED = 0.99
"""Part of the requests that has to be on time for a load to count as sustained."""
NOTES = (
    "work: answers in the unit time that each takes in a full batch at its knee, with SLOs twice the paper's",
    "tight case: knees 25/30/40/50, a batch of 16 of each model due once in each of its SLOs",
    "overload: Poisson arrivals, 1200/1200/500/250 requests/s, part on time; loads are parts of that",
    f"sustained: goodput at the highest load with {SUSTAINED:.0%} of all requests on time; least: the smallest ratio of"
    " goodputs at any load; D-STACK at the better of its own operating points and the paper's",
)


def run(effort: Effort, progress: Progress) -> Iterator[Figure]:
    """Compute them."""
    full = effort.rounds > 2
    progress("spacetime on the three ConvNets")
    seconds = 20.0 if full else 6.0
    outcome = backlog("spacetime", convnets(), seconds)
    ratio = 100 * work(outcome, convnets()) / ideal_work(ideal(seconds))
    yield Figure("3 ConvNets, spacetime / ideal", "", None, ratio, "%", "spacetime", at_least=95)
    progress("spacetime on the other workloads of the paper")
    yield from _same_workloads(seconds)
    progress("the case in which earliest-fit fails")
    yield from _tight(seconds)
    progress("overload")
    yield from _overload(seconds / 2)
    yield from _sweep(seconds / 4, full, progress)


def _same_workloads(seconds: float) -> Iterator[Figure]:
    """What spacetime does where D-STACK was compared with temporal sharing; in unit time, as models get other parts."""
    three = [relaxed(paper_model(name), 2) for name in ("alexnet", "resnet50", "vgg19")]
    for policy in ("dstack", "spacetime"):
        part = work(backlog(policy, three, seconds), three)
        yield Figure(f"3 models, work, {policy}", "", None, part, "%", policy)
    four = [relaxed(paper_model(name), 2) for name in NAMES]
    temporal = work(backlog(SLICES, four, seconds), four)
    for policy in ("dstack", "spacetime"):
        ratio = work(backlog(policy, four, seconds), four) / temporal
        yield Figure(f"4 models, work, {policy} / temporal", "", None, ratio, "x", policy)
    for policy in ("dstack", "spacetime"):
        ratio = work(backlog(policy, four, seconds / 2, count=4), four) / temporal
        yield Figure(f"4 devices, work, {policy} / temporal", "", None, ratio, "x", policy)


def _tight(seconds: float) -> Iterator[Figure]:
    """Work of which each model is to run exactly once in each of its SLOs."""
    loads = []
    for name, knee in zip(NAMES, (25, 30, 40, 50), strict=True):
        model = paper_model(name, knee=knee)
        count = int(seconds * 1e9) // model.slo_ns
        times = [index * model.slo_ns for index in range(count) for _ in range(BATCH)]
        loads.append(Load(model.served(), Timestamps(times)))
    for policy in ("dstack=deadlines", "dstack", "spacetime"):
        outcome = open_loop(policy, loads, seconds)
        vgg19 = 100 * outcome.models[ModelName("vgg19")].attainment
        every = 100 * outcome.attainment
        if policy == "spacetime":
            yield Figure("tight case, spacetime on time", "", None, every, "%", policy, at_least=100)
        elif policy == "dstack":
            yield Figure("tight case, both passes on time", "", None, every, "%", policy)
        else:
            yield Figure("tight case, VGG-19 by deadline pass", "", 0.0, vgg19, "%", policy)


def _overload(seconds: float) -> Iterator[Figure]:
    flat: dict[str, LatencySurface] = {
        name: FlatKneeSurface(knee, tables.flat_knee(KIND, name).runtimes_ns)
        for name, knee in zip(NAMES, (25, 30, 40, 50), strict=True)
    }
    known = {"max_throughput": 82.0, "dstack": 12.0}
    for what, surfaces in (("flat", flat), ("measured", _measured())):
        goodput = {}
        for policy in ("max_throughput", "dstack", "spacetime"):
            outcome = open_loop(policy, _loads(surfaces, 1.0), seconds)
            goodput[policy] = outcome.goodput_per_s
            if policy != "spacetime":
                expected = known[policy] if what == "flat" else None
                name = f"overload {what}, {policy}"
                yield Figure(name, "", expected, 100 * outcome.attainment, "%", policy, loose=True)
                continue
            admitted = 100 * outcome.admitted_on_time
            yield Figure(f"overload {what}, admitted on time", "", None, admitted, "%", policy, at_least=95)
            ratio = goodput["spacetime"] / max(1.0, goodput["max_throughput"])
            name = f"overload {what}, / max_throughput"
            yield Figure(name, "", None, ratio, "x", policy, at_least=1)


def _sweep(seconds: float, full: bool, progress: Progress) -> Iterator[Figure]:
    """Goodput over loads, on the measured surfaces."""
    parts = [index / 20 for index in range(2, 25)] if full else [0.2, 0.3, 0.4, 0.5, 1.0]
    best = {"dstack": 0.0, "spacetime": 0.0}
    least = float("inf")
    for part in parts:
        progress(f"measured V100, {part:.0%} of the overload's rates")
        loads = _loads(_measured(), part)
        dstack = max(
            (open_loop(policy, loads, seconds) for policy in ("dstack", PINNED)),
            key=lambda outcome: outcome.goodput_per_s,
        )
        spacetime = open_loop("spacetime", loads, seconds)
        least = min(least, spacetime.goodput_per_s / max(1.0, dstack.goodput_per_s))
        for policy, outcome in (("dstack", dstack), ("spacetime", spacetime)):
            if outcome.attainment >= SUSTAINED:
                best[policy] = max(best[policy], outcome.goodput_per_s)
    yield Figure("measured V100, D-STACK sustains", "", None, best["dstack"], "/s", "dstack")
    yield Figure("measured V100, spacetime sustains", "", None, best["spacetime"], "/s", "spacetime")
    ratio = best["spacetime"] / max(1.0, best["dstack"])
    yield Figure("measured V100, sustained / D-STACK", "", None, ratio, "x", "spacetime", at_least=1.25)
    yield Figure("measured V100, least / D-STACK", "", None, least, "x", "spacetime", at_least=1)


def _measured() -> dict[str, LatencySurface]:
    return {name: tables.surface(KIND, name, max_batch=BATCH) for name in NAMES}


def _loads(surfaces: dict[str, LatencySurface], part: float) -> list[Load]:
    made = []
    for name, rate in zip(NAMES, RATES, strict=True):
        slo_ns = tables.model(KIND, name).slo_ns or 50 * MS
        model = ServedModel(ModelName(name), slo_ns, {KIND: surfaces[name]})
        made.append(Load(model, Poisson(part * rate)))
    return made
