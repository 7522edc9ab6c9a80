"""The tables of a profile."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from polymux.cli.text import duration, size, table
from polymux.perfmodel.efficacy import Optimum
from polymux.profiles import Point, ProfileStore
from polymux.profiling.summary import Summary

_KNEES = {
    "derivative": "largest 1 / (latency² × share), as D-STACK",
    "chord": "furthest below the chord",
    "tolerance": "within 10 % of the largest share",
}
_BATCHING = {
    "dynamic": "free batch",
    "rewritten": "batch fixed at 1 in the file, made free",
    "fixed": "batch fixed at 1",
}
_UNITS_WIDTH, _TIME_WIDTH = 7, 18
IMPRECISE = 0.1
"""Half intervals from here on, relative to the median, are shown in yellow."""


def print_list(store: ProfileStore, console: Console) -> None:
    """List the profiles of a store."""
    models = {model.key: model for model in store.models()}
    devices = store.devices()
    console.print(f"[bold]Profiles in {escape(str(store.path))}[/bold]", soft_wrap=True)
    made = table("", ("model", "content", "device", "places", "batching"), ("places",))
    for model_key, device_key in sorted(store.profiles(), key=lambda pair: (models[pair[0]].name, pair[1])):
        grid = store.grid(model_key, device_key)
        whole = 0 if grid is None else len(grid.places)
        done = whole - len(store.missing(model_key, device_key))
        model = models[model_key]
        made.add_row(
            escape(model.name),
            model.key.removeprefix("sha256:")[:12],
            escape(str(devices[device_key])),
            f"{done}/{whole}" if done < whole else str(whole),
            model.batching,
        )
    if not made.rows:
        made.add_row("[dim]none[/dim]")
    console.print(made)


def print_profile(summary: Summary, console: Console) -> None:
    """Print a profile: its table, and what follows."""
    model, device = summary.model, summary.device
    console.print(f"[bold]{escape(model.name)}[/bold] on {escape(str(device))}")
    console.print(
        f"[dim]{escape(model.inputs)}; {_BATCHING.get(model.batching, model.batching)}; weights"
        f" {size(model.weight_nbytes)}; content {model.key.removeprefix('sha256:')[:12]}[/dim]",
        soft_wrap=True,
    )
    _print_times(summary, console)
    missing = len(summary.grid.places) - len(summary.points)
    if summary.surface is None:
        console.print(
            f"[yellow]{missing} places are missing: run 'polymux profile' again, it resumes[/yellow]"
        )
        return
    _print_knees(summary, console)
    _print_optimum(summary, console)
    _print_bound(summary, console)


def _print_times(summary: Summary, console: Console) -> None:
    confidence = next((point.confidence for point in summary.points.values()), 0.95)
    console.print(f"[bold]Median of a batch, ± half of its {confidence:.0%} confidence interval[/bold]")
    batches = [f"batch {batch}" for batch in summary.grid.batches]
    made = table("", ("units", *batches), ("units", *batches))
    is_narrow = console.width < _UNITS_WIDTH + _TIME_WIDTH * len(batches)
    for units in summary.grid.units:
        points = (summary.points.get((units, batch)) for batch in summary.grid.batches)
        made.add_row(str(units), *(_time(point, "\n" if is_narrow else " ") for point in points))
    console.print(made)


def _time(point: Point | None, between: str) -> str:
    if point is None:
        return "-"
    part = point.half_width_ns / point.median_ns
    style = "yellow" if part >= IMPRECISE else "dim"
    return f"{duration(point.median_ns)}{between}[{style}]±{100 * part:.1f} %[/{style}]"


def _print_knees(summary: Summary, console: Console) -> None:
    batches = [f"batch {batch}" for batch in summary.grid.batches]
    console.print("[bold]Knee, in units[/bold]")
    made = table("", ("definition", *batches), batches)
    for name, found in summary.knees.items():
        made.add_row(_KNEES[name], *(str(found[batch]) for batch in summary.grid.batches))
    console.print(made)
    if len(summary.grid.units) < 3:
        console.print("[dim]With fewer than three shares a knee is only the better of them.[/dim]")


def _print_optimum(summary: Summary, console: Console) -> None:
    if summary.best is not None:
        console.print(f"Largest efficacy: {_place(summary.best)}")
    if summary.demand is not None:
        asked = f"{summary.demand.rate_per_s:g} requests/s within {duration(summary.demand.slo_ns)}"
        if summary.optimum is None:
            console.print(f"[yellow]For {asked}: {escape(summary.why_none)}[/yellow]", soft_wrap=True)
        else:
            console.print(f"Optimum for {asked}: {_place(summary.optimum)}")
    else:
        console.print("[dim]Give --slo-ms and --rate for the optimum under a deadline and a rate.[/dim]")
    if summary.median_error is not None:
        console.print(f"A place predicted from the others is off by {summary.median_error:.1%} (median).")


def _place(found: Optimum) -> str:
    units = "1 unit" if found.units == 1 else f"{found.units} units"
    return (
        f"{units}, batch {found.batch}: {duration(found.latency_ns)}, {found.throughput_per_s:,.0f} items/s"
    )


def _print_bound(summary: Summary, console: Console) -> None:
    if not summary.bounds:
        console.print("[dim]Bound: not known, the device's roofline was not measured.[/dim]")
        return
    columns = (
        "units",
        "batch",
        "bound by",
        "memory-bound part",
        "ops/byte",
        "ridge",
        "at least",
        "measured / least",
    )
    console.print("[bold]Bound, by the roofline measured on the device[/bold]")
    made = table("", columns, (*columns[:2], *columns[3:]))
    ends = sorted({summary.grid.batches[0], summary.grid.batches[-1]})
    for units in summary.grid.units:
        for batch in ends:
            bound = summary.bounds.get((units, batch))
            if bound is not None:
                made.add_row(
                    str(units),
                    str(batch),
                    bound.by,
                    f"{bound.memory_part:.0%}",
                    f"{bound.intensity:.1f}",
                    f"{bound.ridge:.1f}",
                    duration(bound.least_ns),
                    f"{bound.of_least:.1f}",
                )
    console.print(made)
