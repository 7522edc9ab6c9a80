"""What a decision about requests costs: every policy with 10, 100 and 1,000 models on one device.

The engine is driven by the simulator; each call of the policy is timed on the wall clock. The baseline is the policy
that does least, `unscheduled`, in the same run.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Self

import numpy as np

from polymux.bench.effort import Effort
from polymux.bench.report import Progress, Report, Row
from polymux.core.ids import DeviceId
from polymux.core.serving.decision import PolicyDecision, RejectRequest, Start
from polymux.core.serving.event import ServingEvent
from polymux.core.serving.model import ModelName, Request, ServedModel, ServingDevice
from polymux.core.serving.view import ServingView
from polymux.perfmodel import tables
from polymux.policy.serving import registry
from polymux.policy.serving.interface import SelectivePolicy, ServingPolicy
from polymux.sim.serving import Load, Poisson, Scenario, simulate

KIND = "v100"
MODELS = (("mobilenet", 50, 250.0), ("alexnet", 50, 250.0), ("resnet50", 100, 100.0), ("vgg19", 200, 50.0))
"""Name in the tables, SLO in ms, requests per second of all models of that name together."""
READY = (30, 60)
"""Shares on which each model can be started, in percent."""
COUNTS = (10, 100, 1_000)
SECONDS = 4.0
BASELINE = "unscheduled"


def run(effort: Effort, progress: Progress) -> Report:
    """Measure every policy with every number of models."""
    quick = effort.rounds <= 2
    seconds = SECONDS / 20 if quick else SECONDS
    results = []
    for count in COUNTS:
        few = quick and count == COUNTS[-1]  # some others need long to take in so many models
        for name in (BASELINE, "spacetime") if few else registry.names():
            progress(f"{name}, {count:,} models")
            results.append(_measure(name, count, seconds))
    baselines = {result["models"]: result for result in results if result["policy"] == BASELINE}
    rate = sum(rate for _, _, rate in MODELS)
    return Report(
        "decide",
        "time of the policy for each request and each batch, with 10, 100 and 1,000 models on one device",
        tuple(_row(result, baselines[result["models"]]) for result in results),
        results,
        (
            f"{seconds:g} simulated seconds, Poisson arrivals of {rate:,.0f} a second in all, a {KIND}",
            "a request: all admissions and decisions over the requests; admit, decide: one call, the median and the"
            " 99th percentile",
        ),
    )


def _scenario(count: int, seconds: float) -> Scenario:
    facts = tables.device(KIND)
    device = ServingDevice(DeviceId(f"{KIND}:0"), facts.units, facts.shares, KIND)
    loads = []
    for index in range(count):
        name, slo_ms, rate = MODELS[index % len(MODELS)]
        copies = (count - index % len(MODELS) + len(MODELS) - 1) // len(MODELS)
        model = ServedModel(
            ModelName(f"{name}-{index}"), slo_ms * 1_000_000, {KIND: tables.surface(KIND, name)}
        )
        loads.append(Load(model, Poisson(rate / copies), ready={device.id: READY}))
    return Scenario((device,), tuple(loads), round(seconds * 1e9), seed=1, keep_spans=False)


def _measure(name: str, count: int, seconds: float) -> dict[str, Any]:
    policy = _Timed(registry.load(name))
    gc.collect()
    gc.freeze()  # what the program consists of is not looked at again and again
    try:
        outcome = simulate(policy, _scenario(count, seconds))
    finally:
        gc.unfreeze()
    total_ns = sum(policy.admit_ns) + sum(policy.decide_ns)
    return {
        "policy": name,
        "models": count,
        "request_us": total_ns / outcome.requests / 1e3,
        "batch_us": total_ns / max(1, policy.starts) / 1e3,
        "admit_us": _percentile_us(policy.admit_ns, 50),
        "admit_p99_us": _percentile_us(policy.admit_ns, 99),
        "decide_us": _percentile_us(policy.decide_ns, 50),
        "decide_p99_us": _percentile_us(policy.decide_ns, 99),
        "requests": outcome.requests,
        "on_time": outcome.attainment,
    }


def _percentile_us(times_ns: list[int], percent: float) -> float:
    return float(np.percentile(times_ns, percent)) / 1e3 if times_ns else 0.0


def _row(result: dict[str, Any], baseline: dict[str, Any]) -> Row:
    return Row(
        f"{result['policy']}, {result['models']:,} models: a request (admit {result['admit_us']:.1f},"
        f" p99 {result['admit_p99_us']:.0f}; decide {result['decide_us']:.1f}, p99 {result['decide_p99_us']:.0f})",
        result["request_us"],
        "us",
        baseline["request_us"],
        BASELINE,
    )


class _Timed:
    """A policy, and the time of each of its calls once models and devices are there."""

    def __init__(self, policy: ServingPolicy) -> None:
        self._policy = policy
        self._awaits = policy.awaits if isinstance(policy, SelectivePolicy) else None
        self.admit_ns: list[int] = []
        self.decide_ns: list[int] = []
        self.starts = 0

    @classmethod
    def make(cls, option: str) -> Self:
        return cls(registry.load(option))

    def admit(self, view: ServingView, request: Request, now: int) -> RejectRequest | None:
        start_ns = perf_counter_ns()
        answer = self._policy.admit(view, request, now)
        self.admit_ns.append(perf_counter_ns() - start_ns)
        return answer

    def awaits(self, view: ServingView, request: Request, now: int) -> bool:
        return self._awaits is None or self._awaits(view, request, now)

    def decide(self, view: ServingView, event: ServingEvent, now: int) -> Sequence[PolicyDecision]:
        start_ns = perf_counter_ns()
        answer = self._policy.decide(view, event, now)
        took_ns = perf_counter_ns() - start_ns
        if self.admit_ns:
            self.decide_ns.append(took_ns)
            self.starts += sum(isinstance(decision, Start) for decision in answer)
        return answer
