"""How many requests a second of wall time simulates, on one core, under every policy for requests.

Eight models with the measured times of a V100, Poisson arrivals at about what the device can do. The baseline does
what no simulation does without: a heap in Python that takes in and gives out one thing to come for each request and
each batch.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Self

from polymux import compiled
from polymux.bench.effort import Effort
from polymux.bench.report import Progress, Report, Row
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import PolicyDecision, RejectRequest
from polymux.core.serving.event import ServingEvent
from polymux.core.serving.model import ModelName, Request, ServedModel, ServingDevice
from polymux.core.serving.view import ServingView
from polymux.perfmodel import tables
from polymux.policy.serving import registry
from polymux.policy.serving.interface import SelectivePolicy, ServingPolicy
from polymux.sim.serving import Load, Poisson, Scenario, ServingOutcome, simulate

TARGET_PER_S = 200_000
KIND = "v100"
MODELS = (("mobilenet", 50, 380.0), ("alexnet", 50, 380.0), ("resnet50", 100, 160.0), ("vgg19", 200, 80.0))
"""Name in the tables, SLO in ms, requests per second; each twice."""
SECONDS = 40.0
HOW_IT_RAN = {
    True: "the modules that decide and simulate are compiled",
    False: "the modules that decide and simulate run as Python; `make fast` compiles them, two to three times as fast",
}


def run(effort: Effort, progress: Progress) -> Report:
    """Measure every policy."""
    seconds = SECONDS if effort.rounds > 2 else SECONDS / 10
    results = []
    for name in registry.names():
        progress(name)
        results.append(_measure(name, _scenario(seconds), effort.rounds))
    return Report(
        "simulate",
        f"{2 * len(MODELS)} models on a simulated {KIND}: requests in a second of wall time, on one core",
        tuple(_row(result) for result in results),
        results,
        (
            f"{seconds:g} simulated seconds, Poisson arrivals of {2 * sum(model[2] for model in MODELS):,.0f} a"
            f" second in all; the best of {effort.rounds} rounds",
            "baseline: a heap in Python, one push and pop for each request and each batch",
            "policy_part: the part of the time that is spent in the policy itself, from a round of its own",
            HOW_IT_RAN[compiled.is_used()],
        ),
    )


def _scenario(seconds: float) -> Scenario:
    facts = tables.device(KIND)
    device = ServingDevice(DeviceId(f"{KIND}:0"), facts.units, facts.shares, KIND)
    loads = [
        Load(
            ServedModel(
                ModelName(f"{name}-{copy}"),
                slo_ms * 1_000_000,
                {KIND: tables.surface(KIND, name)},
                rate_per_s=rate,
            ),
            Poisson(rate),
        )
        for copy in range(2)
        for name, slo_ms, rate in MODELS
    ]
    return Scenario((device,), tuple(loads), round(seconds * 1e9), seed=1, keep_spans=False)


def _measure(name: str, scenario: Scenario, rounds: int) -> dict[str, Any]:
    simulate(registry.load(name), replace(scenario, duration_ns=scenario.duration_ns // 20))  # warm-up
    gc.collect()
    gc.freeze()  # what the program consists of is not looked at again and again
    try:
        timed = [_timed(registry.load(name), scenario) for _ in range(rounds)]
        counted = _Timed(registry.load(name))
        counted_s, _ = _timed(counted, scenario)
    finally:
        gc.unfreeze()
    wall_s, outcome = min(timed, key=lambda pair: pair[0])
    batches = sum(model.batches for model in outcome.models.values())
    items = sum(model.items for model in outcome.models.values())
    heap_s = min(_heap_s(outcome.requests + batches) for _ in range(rounds))
    return {
        "policy": name,
        "requests_per_s": outcome.requests / wall_s,
        "heap_requests_per_s": outcome.requests / heap_s,
        "policy_part": counted.seconds / counted_s,
        "requests": outcome.requests,
        "mean_batch": items / batches if batches else 0.0,
        "utilisation": outcome.utilisation,
        "on_time": outcome.attainment,
        "times_faster": outcome.seconds / wall_s,
    }


def _timed(policy: ServingPolicy, scenario: Scenario) -> tuple[float, ServingOutcome]:
    start_s = perf_counter()
    outcome = simulate(policy, scenario)
    return perf_counter() - start_s, outcome


def _heap_s(things: int) -> float:
    """Time of a heap of about as many things as a simulation has to come, for so many of them."""
    agenda = [(at, at) for at in range(16)]
    start_s = perf_counter()
    for number in range(things):
        at, _ = heapq.heappop(agenda)
        heapq.heappush(agenda, (at + 17, number))
    return perf_counter() - start_s


class _Timed:
    """A policy, and the time that it took."""

    def __init__(self, policy: ServingPolicy) -> None:
        self._policy = policy
        self._awaits = policy.awaits if isinstance(policy, SelectivePolicy) else None
        self.seconds = 0.0

    @classmethod
    def make(cls, option: str) -> Self:
        return cls(registry.load(option))

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:
        start_s = perf_counter()
        answer = self._policy.admit(view, request, now)
        self.seconds += perf_counter() - start_s
        return answer

    def awaits(self, view: ServingView, request: Request, now: int) -> bool:
        if self._awaits is None:
            return True
        start_s = perf_counter()
        answer = self._awaits(view, request, now)
        self.seconds += perf_counter() - start_s
        return answer

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        start_s = perf_counter()
        answer = self._policy.decide(view, event, now)
        self.seconds += perf_counter() - start_s
        return answer


def _row(result: dict[str, Any]) -> Row:
    return Row(
        f"{result['policy']}, {100 * result['policy_part']:.0f} % in the policy",
        result["requests_per_s"],
        "requests/s",
        result["heap_requests_per_s"],
        "heap",
        f">= {TARGET_PER_S:,}",
        result["requests_per_s"] >= TARGET_PER_S,
    )
