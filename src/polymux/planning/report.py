"""What came of simulations, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.table import Table

from polymux.planning.cluster import MOST_IN_ONE_POOL
from polymux.planning.run import PolicyRun
from polymux.planning.workload import Workload
from polymux.sim.serving.arrivals import SECOND_NS
from polymux.sim.serving.outcome import ModelOutcome, ServingOutcome

PERCENTILES = (50.0, 99.0, 99.9)
_MOST_MODELS = 40
_MOST_DEVICES = 16
_NARROW = 100
"""Columns of a terminal below which the tables do without `_LESS_NEEDED`."""
_LESS_NEEDED = ("answers\n/s", "p50\nms", "Jain")


def print_report(console: Console, workload: Workload, runs: Sequence[PolicyRun]) -> None:
    """Print what was simulated, the policies beside each other, and the models under each."""
    outcome = runs[0].outcome
    kinds: dict[str, int] = {}
    for device in outcome.devices:
        kind = str(device).rpartition(":")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    devices = " + ".join(f"{count} × {kind}" for kind, count in kinds.items())
    console.print(
        f"[bold]{workload.name}[/]: {len(outcome.models)} models on {devices}, {outcome.offered:,} requests in"
        f" {outcome.seconds:g} s, seed {workload.seed}"
    )
    if len(outcome.devices) > MOST_IN_ONE_POOL:
        console.print("  a cluster: each device has an engine of its own, behind a router", style="dim")
    for group in workload.devices:
        if group.estimate_from is not None:
            console.print(
                f"  models not measured on {group.kind} are estimated from {group.estimate_from}, by compute units and"
                " their speed",
                style="dim",
            )
    console.print()
    narrow = console.width < _NARROW
    console.print(_policies(runs, narrow))
    for run in runs:
        waiting = sum(model.unfinished for model in run.outcome.models.values())
        if waiting:
            console.print(f"  {run.policy}: {waiting:,} requests still waited at the end", style="dim")
    for run in runs:
        console.print()
        console.print(Group(_models(run, narrow), *_devices(run)))


def results(workload: Workload, runs: Sequence[PolicyRun]) -> dict[str, Any]:
    """Put everything into plain values; times are in ms, rates per second."""
    return {
        "workload": workload.name,
        "seed": workload.seed,
        "seconds": runs[0].outcome.seconds,
        "devices": len(runs[0].outcome.devices),
        "offered": runs[0].outcome.offered,
        "policies": {run.policy: _outcome_values(run.outcome) for run in runs},
    }


def _outcome_values(outcome: ServingOutcome) -> dict[str, Any]:
    return {
        "throughput_per_s": outcome.throughput_per_s,
        "goodput_per_s": outcome.goodput_per_s,
        "attainment": outcome.attainment,
        "admitted_on_time": outcome.admitted_on_time,
        "offered": outcome.offered,
        "refused": sum(model.refused for model in outcome.models.values()),
        **_percentiles(_latencies(outcome)),
        "utilisation": outcome.utilisation,
        "jain": outcome.jain,
        "energy_j": outcome.energy_j,
        "models": {str(name): _model_values(model) for name, model in outcome.models.items()},
        "devices": {
            str(name): {"utilisation": device.utilisation, "energy_j": device.energy_j}
            for name, device in outcome.devices.items()
        },
    }


def _model_values(model: ModelOutcome) -> dict[str, Any]:
    return {
        "slo_ms": model.slo_ns / 1e6,
        "offered": model.offered,
        "refused": model.refused,
        "answered": model.answered,
        "on_time": model.on_time,
        "failed": model.failed,
        "unfinished": model.unfinished,
        "throughput_per_s": model.throughput_per_s,
        "goodput_per_s": model.goodput_per_s,
        "attainment": model.attainment,
        "admitted_on_time": model.admitted_on_time,
        **_percentiles(model.latencies_ns),
        "mean_batch": model.mean_batch,
        "device_s": model.device_ns / SECOND_NS,
        "unit_s": model.unit_ns / SECOND_NS,
    }


def _latencies(outcome: ServingOutcome) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.sort(np.concatenate([model.latencies_ns for model in outcome.models.values()]))


def _percentiles(latencies_ns: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, float | None]:
    return {f"p{percent:g}_ms": value for percent, value in _ranked(latencies_ns)}


def _ranked(latencies_ns: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[float, float | None]]:
    count = len(latencies_ns)
    return [
        (
            percent,
            float(latencies_ns[max(1, int(np.ceil(percent / 100 * count))) - 1]) / 1e6 if count else None,
        )
        for percent in PERCENTILES
    ]


def _table(title: str | None, first: str, columns: Sequence[str]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column(first, no_wrap=True, vertical="bottom")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _policies(runs: Sequence[PolicyRun], narrow: bool) -> Table:
    rows = []
    for run in runs:
        outcome = run.outcome
        refused = sum(model.refused for model in outcome.models.values())
        rows.append(
            {
                "goodput\n/s": _rate(outcome.goodput_per_s),
                "answers\n/s": _rate(outcome.throughput_per_s),
                "on\ntime": _part(outcome.attainment),
                "of ad-\nmitted": _part(outcome.admitted_on_time),
                "re-\nfused": _part(refused / outcome.offered if outcome.offered else 0.0),
                **_times(_latencies(outcome)),
                "used": _part(outcome.utilisation),
                "Jain": f"{outcome.jain:.3f}",
                "energy": "" if outcome.energy_j is None else _joules(outcome.energy_j),
            }
        )
    return _filled(None, "policy", [run.policy for run in runs], rows, narrow)


def _models(run: PolicyRun, narrow: bool) -> Table:
    models = list(run.outcome.models.values())
    if len(models) > _MOST_MODELS:
        models = sorted(models, key=lambda model: model.attainment)[:_MOST_MODELS]
    rows = [
        {
            "SLO\nms": f"{model.slo_ns / 1e6:g}",
            "offered\n/s": _rate(model.offered / model.seconds),
            "goodput\n/s": _rate(model.goodput_per_s),
            "on\ntime": _part(model.attainment),
            "of ad-\nmitted": _part(model.admitted_on_time),
            "re-\nfused": _part(model.refused / model.offered) if model.offered else "",
            **_times(model.latencies_ns),
            "batch": f"{model.mean_batch:.1f}",
            "device\ntime": f"{model.device_ns / SECOND_NS:.2f} s",
        }
        for model in models
    ]
    table = _filled(run.policy, "model", [str(model.name) for model in models], rows, narrow)
    if len(models) < len(run.outcome.models):
        table.caption = (
            f"{_MOST_MODELS} of {len(run.outcome.models):,} models, those with the least on time first"
        )
        table.caption_justify = "left"
    return table


def _filled(
    title: str | None, first: str, names: Sequence[str], rows: Sequence[dict[str, str]], narrow: bool
) -> Table:
    """Make a table of rows that map headings to texts."""
    columns = [heading for heading in rows[0] if not (narrow and heading in _LESS_NEEDED)]
    table = _table(title, first, columns)
    table.padding = (0, 1, 0, 0) if narrow else (0, 2, 0, 0)
    for name, row in zip(names, rows, strict=True):
        table.add_row(name, *(row[column] for column in columns))
    return table


def _times(latencies_ns: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, str]:
    return {f"p{percent:g}\nms": _milliseconds(value) for percent, value in _ranked(latencies_ns)}


def _devices(run: PolicyRun) -> list[Table]:
    devices = list(run.outcome.devices.values())
    if not 1 < len(devices) <= _MOST_DEVICES:
        return []
    table = _table(None, "device", ("used", "energy"))
    for device in devices:
        energy = "" if device.energy_j is None else _joules(device.energy_j)
        table.add_row(str(device.id), _part(device.utilisation), energy)
    return [Table(box=None, show_header=False), table]


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.1f}"


def _part(part: float) -> str:
    """Write a percentage; what is not all is never written as 100 %."""
    percent = 100 * part
    if 99.9 <= percent < 100:
        return f"{min(percent, 99.99):.2f}%"
    return f"{percent:.1f}%"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _joules(energy_j: float) -> str:
    return f"{energy_j / 3.6e6:,.2f} kWh" if energy_j >= 3.6e6 else f"{energy_j:,.0f} J"
