"""A plan as tables for people and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from polymux.perfmodel.capacity.causes import Cause
from polymux.perfmodel.capacity.demand import Demand
from polymux.perfmodel.capacity.placement import Lane, PlacedDevice
from polymux.planning.plan import Plan
from polymux.planning.plan_check import serving_devices
from polymux.sim.serving.outcome import DeviceOutcome, ModelOutcome

_MOST_MODELS = 40
_MOST_DEVICES = 40
_MOST_MISSED = 5
_MOST_IN_LANE = 3
_DECISIVE = 0.01

CAUSES = {
    "compute": "the work itself",
    "deadlines": "deadlines: batches that cannot wait to be full, shares larger than the best ones",
    "bursts": "bursts: time kept free because requests do not come at equal distances",
    "memory": "memory: weights that do not fit beside each other",
    "granularity": "granularity: devices and lanes that cannot be filled to the end",
}
REMEDIES = {
    "compute": "faster devices, or smaller models",
    "deadlines": "longer SLOs",
    "bursts": "smoother arrivals, longer SLOs, or a lower --attainment",
    "memory": "devices with more memory, or smaller models",
    "granularity": "nothing: the devices have room for more requests",
}


def print_plan(console: Console, plan: Plan) -> None:
    """Print the devices, the models, who is where, and what it is due to."""
    workload, models = plan.workload, len(plan.demands)
    rate = sum(demand.rate_per_s for demand in plan.demands)
    console.print(
        f"[bold]{escape(workload.name)}[/]: {models:,} {_plural('model', models)}, {rate:,.0f} requests/s, on time"
        f" {plan.options.attainment:.2%} or more"
    )
    console.print()
    console.print(_verdict(plan))
    console.print()
    console.print(_kinds(plan))
    console.print()
    console.print(_models(plan))
    console.print()
    console.print(_placement(plan))
    console.print()
    for line in _reasons(plan):
        console.print(line)
    if plan.outcome is not None and any("*" in _attained(plan, m) for m in plan.outcome.models.values()):
        console.print(
            "[dim]* of so few requests so many may be late by chance; a longer --duration tells more[/]"
        )


def plan_results(plan: Plan) -> dict[str, Any]:
    """Put everything into plain values; times are in ms, rates per second, shares in the units of their devices."""
    outcome = plan.outcome
    outcomes = {} if outcome is None else {str(name): model for name, model in outcome.models.items()}
    devices = plan.placement.devices
    names = [str(spec.id) for spec in serving_devices(devices, plan.kinds)]
    return {
        "workload": plan.workload.name,
        "met": plan.is_met,
        "checked": outcome is not None,
        "policy": plan.options.policy,
        "attainment": plan.options.attainment,
        "attained": None if outcome is None else outcome.attainment,
        "devices": plan.placement.counts,
        "cost": plan.cost,
        "bound": {
            "cost": plan.bound.least, "devices": plan.bound.devices(plan.kinds), "compute": plan.bound.compute,
            "deadlines": plan.bound.deadlines, "memory": plan.bound.memory,
        },
        "bottleneck": plan.causes[0].name if plan.causes else None,
        "causes": {cause.name: {"cost": cause.cost, "models": list(cause.models)} for cause in plan.causes},
        "energy_j": None if outcome is None else outcome.energy_j,
        "simulated_requests": 0 if outcome is None else outcome.requests,
        "models": {d.model: _model_values(plan, d, outcomes.get(d.model)) for d in plan.demands},
        "placement": [_device_values(name, device) for name, device in zip(names, devices, strict=True)],
        "unplaced": [
            {"model": left.model, "rate_per_s": left.rate_per_s, "reason": left.reason}
            for left in plan.placement.unplaced
        ],
    }  # fmt: skip


def bottleneck(plan: Plan) -> str:
    """Say in a sentence what the number of devices is due to."""
    if not plan.causes or not plan.placement.devices:
        return "nothing to place"
    first = plan.causes[0]
    text = f"{CAUSES[first.name]} ({_amount(plan, first)})"
    if first.models:
        text += f", most of it for {', '.join(first.models)}"
    return f"{text}; what helps: {REMEDIES[first.name]}"


def _verdict(plan: Plan) -> str:
    counts = plan.placement.counts
    devices = " + ".join(f"{count:,} × {escape(kind)}" for kind, count in counts.items()) or "no device"
    if plan.placement.unplaced:
        return f"[bold red]no plan found[/], only a part of the requests has a place on {devices}: {_unplaced(plan)}"
    if plan.missed:
        named = ", ".join(plan.missed[:_MOST_MISSED])
        more = len(plan.missed) - _MOST_MISSED
        named += f" and {more:,} more" if more > 0 else ""
        return f"[bold red]not met[/] with {devices}: in the simulation too much was late of {escape(named)}"
    if plan.outcome is None:
        return f"[bold]{devices}[/], not checked by simulation"
    outcome = plan.outcome
    return (
        f"[bold green]{devices}[/], checked by simulation: {outcome.requests:,} requests in"
        f" {outcome.seconds:g} s under {escape(plan.options.policy)}, {_part(outcome.attainment)} on time"
    )


def _unplaced(plan: Plan) -> str:
    left = plan.placement.unplaced
    first = f"model {escape(left[0].model)}: {escape(left[0].reason)}"
    return first if len(left) == 1 else f"{first}; and {len(left) - 1:,} more models"


def _kinds(plan: Plan) -> Table:
    table = _table("kind", ("devices", "cost", "models", "busy", "used in the simulation", "power"))
    costs = {kind.name: kind.cost for kind in plan.kinds}
    devices = plan.placement.devices
    outcomes = {} if plan.outcome is None else plan.outcome.devices
    kind_of = {spec.id: spec.kind for spec in serving_devices(devices, plan.kinds)}
    for kind, count in plan.placement.counts.items():
        here = [device for device in devices if device.kind == kind]
        simulated = [outcome for name, outcome in outcomes.items() if kind_of[name] == kind]
        table.add_row(
            escape(kind), f"{count:,}", f"{count * costs[kind]:,.6g}",
            f"{len({model for device in here for model in device.models}):,}",
            _part(sum(device.busy for device in here) / count),
            _part(sum(d.utilisation for d in simulated) / len(simulated)) if simulated else "-", _power(simulated),
        )  # fmt: skip
    return table


def _models(plan: Plan) -> Table:
    columns = ("requests/s", "SLO ms", "on", "shares", "batch", "on time", "p99 ms")
    table = _table("model", columns)
    demands = list(plan.demands)
    outcomes = {} if plan.outcome is None else {str(n): m for n, m in plan.outcome.models.items()}
    if len(demands) > _MOST_MODELS:
        demands = sorted(
            demands, key=lambda d: outcomes[d.model].attainment if d.model in outcomes else -d.rate_per_s
        )
        demands = demands[:_MOST_MODELS]
        which = "with the least on time" if outcomes else "with the most requests"
        table.caption, table.caption_justify = (
            f"{_MOST_MODELS} of {len(plan.demands):,} models, those {which}",
            "left",
        )
    places = _places(plan, {demand.model for demand in demands})
    for demand in demands:
        outcome = outcomes.get(demand.model)
        devices, shares, batches = places[demand.model]
        table.add_row(
            escape(demand.model), f"{demand.rate_per_s:,.1f}", f"{demand.slo_ns / 1e6:g}",
            f"{devices:,} {_plural('device', devices)}", _span(shares, "any"), _span(batches),
            _attained(plan, outcome), _p99(outcome),
        )  # fmt: skip
    return table


def _places(plan: Plan, wanted: set[str]) -> dict[str, tuple[int, list[int], list[int]]]:
    """On how many devices, with which shares and batches each model is."""
    found: dict[str, tuple[set[int], set[int], set[int]]] = {model: (set(), set(), set()) for model in wanted}
    for index, device in enumerate(plan.placement.devices):
        for lane, replica in device.replicas():
            if replica.model in found:
                devices, shares, batches = found[replica.model]
                devices.add(index)
                shares |= set() if device.free else {lane.units}
                batches.add(replica.batch)
    return {model: (len(d), sorted(s), sorted(b)) for model, (d, s, b) in found.items()}


def _placement(plan: Plan) -> Table:
    """List who is on which device; equal devices on one line."""
    table = _table("devices", ("busy",))
    table.add_column("lanes: share, models with requests/s and largest batch")
    rows: Counter[tuple[str, str, str]] = Counter()
    for device in plan.placement.devices:
        rows[(device.kind, _part(device.busy), _lanes(device))] += 1
    ordered = sorted(rows.items(), key=lambda item: -item[1])
    for (kind, busy, lanes), count in ordered[:_MOST_DEVICES]:
        table.add_row(f"{count:,} × {escape(kind)}", busy, lanes)
    if len(ordered) > _MOST_DEVICES:
        left = sum(count for _, count in ordered[_MOST_DEVICES:])
        table.caption, table.caption_justify = (
            f"and {left:,} more devices; --json has all, --picture draws them",
            "left",
        )
    return table


def _lanes(device: PlacedDevice) -> str:
    lanes = Counter((lane.units, _lane(lane)) for lane in device.lanes)
    texts = []
    for (units, models), count in lanes.items():
        width = "any share" if device.free else f"{count} × {units}" if count > 1 else f"{units}"
        texts.append(f"[bold]{width}[/]: {models}")
    return " | ".join(texts)


def _lane(lane: Lane) -> str:
    replicas = sorted(lane.replicas, key=lambda replica: -replica.busy)
    texts = [f"{escape(r.model)} {_rate(r.rate_per_s)}/s ×{r.batch}" for r in replicas[:_MOST_IN_LANE]]
    if len(replicas) > _MOST_IN_LANE:
        left = replicas[_MOST_IN_LANE:]
        texts.append(f"{len(left)} more with {_rate(sum(r.rate_per_s for r in left))}/s")
    return ", ".join(texts)


def _reasons(plan: Plan) -> list[str]:
    lines = [f"[bold]bottleneck[/]: {escape(bottleneck(plan))}"]
    lines += [
        f"  {_amount(plan, cause):>8}  {CAUSES[cause.name]}"
        for cause in plan.causes
        if cause.cost > _DECISIVE * plan.cost
    ]
    if any(kind.cost != 1 for kind in plan.kinds):
        least = f"costs less than {plan.bound.least:.3g}; this one costs {plan.cost:.6g}"
    else:
        least = f"has fewer than {plan.bound.devices(plan.kinds):,}"
    why = "that is what the work in full batches takes, or what the weights take"
    lines.append(f"[dim]no placement {least}; {why}[/]")
    return lines


def _amount(plan: Plan, cause: Cause) -> str:
    if any(kind.cost != 1 for kind in plan.kinds):
        return f"{cause.cost / plan.cost:.0%} of the cost"
    return f"{cause.cost:,.1f} of {len(plan.placement.devices):,} devices"


def _model_values(plan: Plan, demand: Demand, outcome: ModelOutcome | None) -> dict[str, Any]:
    p99_ns = None if outcome is None else outcome.percentile_ns(99)
    return {
        "rate_per_s": demand.rate_per_s,
        "slo_ms": demand.slo_ns / 1e6,
        "missed": demand.model in plan.missed,
        "offered": None if outcome is None else outcome.offered,
        "on_time": None if outcome is None else outcome.on_time,
        "attainment": None if outcome is None else outcome.attainment,
        "p99_ms": None if p99_ns is None else p99_ns / 1e6,
    }


def _device_values(name: str, device: PlacedDevice) -> dict[str, Any]:
    return {
        "device": name,
        "kind": device.kind,
        "busy": device.busy,
        "divided": not device.free,
        "lanes": [
            {
                "share": lane.units,
                "cycle_ms": lane.cycle_ns / 1e6,
                "models": [
                    {"model": r.model, "rate_per_s": r.rate_per_s, "batch": r.batch, "busy": r.busy}
                    for r in lane.replicas
                ],
            }
            for lane in device.lanes
        ],
    }


def _table(first: str, columns: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _part(part: float) -> str:
    """Write a percentage; what is not all is never written as 100 %."""
    return f"{100 * part:.1f}%" if not 0.9995 <= part < 1 else ">99.9%"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _power(devices: list[DeviceOutcome]) -> str:
    """Mean electrical power of some devices in the simulation."""
    if not devices or any(device.energy_j is None for device in devices):
        return "-"
    watts = sum((device.energy_j or 0.0) / device.seconds for device in devices)
    return f"{watts / 1000:,.1f} kW" if watts >= 1000 else f"{watts:.0f} W"


def _attained(plan: Plan, outcome: ModelOutcome | None) -> str:
    if outcome is None:
        return "-"
    text = _part(outcome.attainment)
    return (
        text if outcome.attainment >= plan.options.attainment or outcome.name in plan.missed else f"{text}*"
    )


def _p99(outcome: ModelOutcome | None) -> str:
    value = None if outcome is None else outcome.percentile_ns(99)
    return "-" if value is None else f"{value / 1e6:,.1f}"


def _span(values: list[int], none: str = "-") -> str:
    return none if not values else f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
