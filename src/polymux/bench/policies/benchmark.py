"""The benchmark ``polymux bench policies``."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polymux.bench.effort import Effort
from polymux.bench.policies.bare import BareBatches
from polymux.bench.policies.calibration import Calibration, calibrate
from polymux.bench.policies.live import FrontEnd, Outcome, closed_loop, open_loop
from polymux.bench.policies.prediction import Prediction, predict
from polymux.bench.policies.workload import MODELS, Workload, make_workload
from polymux.bench.report import Progress, Report, Row
from polymux.core.errors import PolymuxError
from polymux.profiling.options import ProfileOptions
from polymux.profiling.private_server import PrivateServer

POLICIES = ("unscheduled", "temporal", "gslice", "dstack", "spacetime")
LOADS = (0.5, 0.8, 1.0, 1.2)
CLIENTS = 16
"""Of the closed loop that measures the capacity."""
CHANGE_CLIENTS = 4
"""Of the closed loop while shares change."""
TARGETS = {1.0: 1.3, 1.2: 2.0}
"""Goodput of spacetime over that of unscheduled, by load."""
ON_TIME_TARGET = 0.999
PREDICTION_TARGET = 0.1
STEADY, TRIES = 0.05, 2
"""By so much the machine may change its speed during a load; else it is sent again, and the steadier one counts."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes
    ----------
    models, policies, loads : tuple
    seconds : float
        Of each load.
    bare_s : float
        That each model is run alone on each share, before and after each load.
    capacity_requests : int
        Of the closed loop.
    exchanges : int
        Requests of each kind by which the costs besides batches are measured.
    profile : ProfileOptions
    """

    models: tuple[str, ...] = MODELS
    policies: tuple[str, ...] = POLICIES
    loads: tuple[float, ...] = LOADS
    seconds: float = 30.0
    bare_s: float = 0.15
    capacity_requests: int = 600
    exchanges: int = 400
    profile: ProfileOptions = field(default_factory=lambda: ProfileOptions(batches=(1, 2, 4, 8), place_s=2.0))


QUICK_SIZE = Size(
    seconds=2.0,
    bare_s=0.05,
    capacity_requests=200,
    exchanges=100,
    profile=ProfileOptions(batches=(1, 2, 4, 8), min_repeats=8, max_repeats=8, place_s=0.3),
)


def run(effort: Effort, progress: Progress) -> Report:
    """Measure every policy at every load."""
    return measure(QUICK_SIZE if effort.rounds <= 2 else Size(), progress)


def measure(size: Size, progress: Progress) -> Report:
    """Measure what a size says."""
    with (
        tempfile.TemporaryDirectory(prefix="polymux-bench-") as folder,
        PrivateServer(["cpu,shares=nested"]) as server,
    ):
        with server.connect("measured") as client, server.connect("beside") as other:
            workload = make_workload(Path(folder), (client, other), size.models, size.profile, progress)
        with server.connect("bare") as client, BareBatches(workload, client, size.bare_s) as bare:
            return _measure(workload, bare, server.socket, size, progress)


def _measure(workload: Workload, bare: BareBatches, socket: str, size: Size, progress: Progress) -> Report:
    calibration = calibrate(workload, bare, socket, size.exchanges, progress)
    capacity = _capacity(workload, socket, size, progress)
    progress("changes of shares")
    changes = _share_changes(workload, socket, size)
    results: dict[str, dict[str, Any]] = {}
    for policy in size.policies:
        results[policy] = {}
        for load in size.loads:
            progress(f"{policy} at {load:g} of the capacity of {capacity:.0f} requests/s")
            tries = []
            for _ in range(TRIES):
                tries.append(_at(workload, bare, socket, policy, load * capacity, size, calibration))
                if tries[-1]["machine_change"] <= STEADY:
                    break
            results[policy][f"{load:g}"] = min(tries, key=lambda found: found["machine_change"])
    return Report(
        "policies",
        f"{len(size.models)} real models under deadlines, open loop; capacity {capacity:.1f} requests/s",
        (*_rows(results), *changes),
        results,
        _notes(workload, size, calibration, results),
    )


def _capacity(workload: Workload, socket: str, size: Size, progress: Progress) -> float:
    """Requests per second of the mix that the device can do at most, first come, first served, each alone."""
    progress("capacity: requests of the mix, one after the other")
    with FrontEnd(workload, socket, "unscheduled") as front:
        closed_loop(front, workload, 3 * len(workload.models), 1, seed=1)
        full = closed_loop(front, workload, size.capacity_requests, CLIENTS, seed=3)
        front_log = front.log[-1000:].strip()
    answered = full.latencies_ns >= 0
    if not answered.all():
        raise PolymuxError(
            f"{np.count_nonzero(~answered)} of {len(answered)} requests of a closed loop were not answered: {front_log}"
        )
    return full.steady_per_s


def _share_changes(workload: Workload, socket: str, size: Size) -> tuple[Row, ...]:
    """Serve without profiles: the shares of models change while their knees are looked for."""
    with FrontEnd(workload, socket, "spacetime", profiled=False) as front:
        closed_loop(front, workload, size.capacity_requests, CHANGE_CLIENTS, seed=4)
        changes, gaps = front.metric("share_changes_total"), front.metric("longest_gap_seconds")
        counts, seconds = front.metric("batch_seconds_count"), front.metric("batch_seconds_sum")
    rows = []
    for model in workload.models:
        if model.name in gaps:
            batch_ms = 1e3 * seconds[model.name] / counts[model.name]
            name = f"{model.name}: longest gap in {changes[model.name]:.0f} changes of share"
            rows.append(Row(name, 1e3 * gaps[model.name], "ms", batch_ms, "a batch"))
    return tuple(rows)


def _at(
    workload: Workload,
    bare: BareBatches,
    socket: str,
    policy: str,
    rate: float,
    size: Size,
    calibration: Calibration,
) -> dict[str, Any]:
    seed = 10
    with FrontEnd(workload, socket, policy) as front:
        closed_loop(front, workload, 3 * len(workload.models), 1, seed=1)  # warm
        before = bare.machine()
        outcome = open_loop(front, workload, rate, size.seconds, seed)
        after = bare.machine()
    machine = before.between(after)
    arrivals = workload.arrivals(rate, size.seconds, seed)
    predicted = predict(workload, policy, arrivals, size.seconds, calibration, machine)
    return _result(workload, outcome, predicted) | {
        "machine_pace": machine.mean,
        "machine_change": abs(after.mean - before.mean) / machine.mean,
        "machine_noise": machine.noise,
    }


def _result(workload: Workload, outcome: Outcome, predicted: Prediction) -> dict[str, Any]:
    slos = np.array([model.slo_ns for model in workload.models])
    answered = outcome.latencies_ns >= 0
    on_time = answered & (outcome.latencies_ns <= slos[outcome.models])
    admitted = int(np.count_nonzero(~outcome.refused))
    models = {}
    for index, model in enumerate(workload.models):
        own = outcome.models == index
        latencies = outcome.latencies_ns[own & answered]
        models[model.name] = {
            "goodput": float(np.count_nonzero(on_time & own)) / outcome.seconds,
            "offered": int(np.count_nonzero(own)),
            "refused": int(np.count_nonzero(outcome.refused & own)),
            "on_time": int(np.count_nonzero(on_time & own)),
            "p99_ms": float(np.percentile(latencies, 99)) / 1e6 if len(latencies) else None,
            "slo_ms": model.slo_ns / 1e6,
        }
    return {
        "goodput": float(np.count_nonzero(on_time)) / outcome.seconds,
        "admitted_on_time": float(np.count_nonzero(on_time)) / admitted if admitted else 1.0,
        "predicted_goodput": predicted.goodput_per_s,
        "predicted_admitted_on_time": predicted.admitted_on_time,
        "offered": len(outcome.models) / outcome.seconds,
        "refused": float(np.mean(outcome.refused)),
        "failed": outcome.failed,
        "generator_lag_ms": outcome.lag_ns / 1e6,
        "models": models,
    }


def _rows(results: dict[str, dict[str, Any]]) -> list[Row]:
    rows = []
    baseline = results.get("unscheduled", {})
    for policy, loads in results.items():
        for load, result in loads.items():
            base = baseline.get(load, {}).get("goodput") if policy != "unscheduled" else None
            factor = TARGETS.get(float(load)) if policy == "spacetime" else None
            met = None if factor is None or base is None else result["goodput"] >= factor * base
            target = f">= {factor:g} x" if factor is not None and base is not None else ""
            rows.append(
                Row(f"{policy} at {load}", result["goodput"], "on time/s", base, "unscheduled", target, met)
            )
            if policy == "spacetime":
                value = result["admitted_on_time"]
                rows.append(
                    Row(
                        f"  admitted, {load}",
                        100 * value,
                        "% on time",
                        None,
                        "",
                        ">= 99.9 %",
                        value >= ON_TIME_TARGET,
                    )
                )
            predicted = result["predicted_goodput"]
            near = abs(predicted - result["goodput"]) <= PREDICTION_TARGET * max(result["goodput"], 1e-9)
            rows.append(
                Row("  predicted", predicted, "on time/s", result["goodput"], "measured", "within 10 %", near)
            )
    return rows


def _notes(
    workload: Workload, size: Size, calibration: Calibration, results: dict[str, dict[str, Any]]
) -> tuple[str, ...]:
    models = ", ".join(
        f"{m.name} {m.part:.0%} (alone {m.surface.latency_ns(workload.device.units, 1) / 1e6:.1f} ms, slo"
        f" {m.slo_ns / 1e6:.0f} ms)"
        for m in workload.models
    )
    host = calibration.host
    costs = ", ".join(
        f"{model.name} {(work.receive_ns + work.reply_ns) / 1e6:.2f} + {(work.send_ns + work.take_ns) / 1e6:.2f} ms"
        for model, work in zip(workload.models, host.work.values(), strict=True)
    )
    drag = sum(host.drag.values()) / max(1, len(host.drag))
    paces = [result["machine_pace"] for loads in results.values() for result in loads.values()]
    return (
        f"requests, by model: {models}",
        f"each policy has the same seeded Poisson arrivals, for {size.seconds:g} s; on time: as the client sees it",
        "capacity: answers per second of a closed loop, first come, first served, each request alone on all cores",
        "predicted: simulated with the profiles of this run, and these costs, measured before the loads:",
        f"  processor time of front end + generator: {costs} a request",
        f"  a thread of theirs that shares its core with a batch runs at {host.pressed_speed:.2f} of its speed, and the"
        f" batch loses {drag:.2f} of its time",
        f"  batches alone, around each load, took {min(paces):.2f} to {max(paces):.2f} times what the profiles say",
    )
