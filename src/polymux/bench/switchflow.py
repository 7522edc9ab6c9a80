"""Training in the background of requests, and of other training: unmanaged, in time slices, and under SwitchFlow.

Nothing is measured here: the engine of jobs and its policies run in virtual time (`polymux.sim.jobs`).

References
----------
Wu, Wu, Ghose, Xing: SwitchFlow: Preemptive Multitasking for Deep Learning. Middleware 2021.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from polymux.bench.effort import Effort
from polymux.bench.report import Progress, Report
from polymux.bench.switchflow_setups import Setup, beside_training, equal_trainings, harvest, two_trainings
from polymux.policy.jobs import registry
from polymux.sim.jobs import JobsOutcome, RequestLoad, TaskTrace, simulate_jobs
from polymux.sim.jobs.outcome import percentile_ns

POLICIES = ("unmanaged", "processes", "time_slicing", "switchflow")
"""`processes`: unmanaged as well, but each a process of its own."""
TENFOLD = 10.0
KEPT = 0.95
"""Part of what the requests leave that training is to keep."""
SERVED = ("resnet50", "vgg19", "mobilenet", "nmt")
_MS = 1e6


class SetupReport(Report):
    """A report with a line for each policy under the name of each set-up."""

    def print(self, console: Console) -> None:
        """Print the table and the notes."""
        console.print(f"[bold]{self.name}: {self.title}[/]", highlight=False)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("", no_wrap=True)
        for heading in ("p99", "below unmanaged", "training"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        before = ""
        for result in self.results:
            assert isinstance(result, dict)
            if result["setup"] != before:
                before = result["setup"]
                table.add_row(f"[bold]{before}[/]")
            p99 = "" if result["p99_ms"] is None else f"{result['p99_ms']:,.1f} ms"
            below = "" if result["below"] is None else f"{result['below']:.1f} x"
            verdict = {None: "", True: "[green]met[/]", False: "[red bold]missed[/]"}[result["met"]]
            table.add_row(f"  {result['policy']}", p99, below, _trained(result), verdict)
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", style="dim", highlight=False)


def run(effort: Effort, progress: Progress) -> Report:
    """Simulate every set-up under every policy."""
    seconds = 60.0 if effort.rounds > 2 else 6.0
    results: list[dict[str, Any]] = []
    for setup in setups(seconds):
        progress(setup.name)
        results += compare(setup)
    return SetupReport(
        "switchflow",
        "training in the background of requests and of other training; simulated",
        (),
        results,
        (
            f"{seconds:g} simulated seconds, the same requests for every policy; alone: without training",
            "training: of what it does alone on its fastest device; the requests take the percentage that is named",
            "unmanaged: threads of one process, whose kernels share a stream, as the paper compares; processes: the",
            "driver gives all equal slices, at no cost; in either, out of memory as it would be",
            f"targets: p99 {TENFOLD:g} times below unmanaged next to VGG-16, where the paper says 8 to 19 times;",
            f"training at least {KEPT:g} of what the requests leave; two trainings without a failure",
            "under spacetime, p99 is how long batches wait for the device beyond their plan",
        ),
    )


def setups(seconds: float) -> Iterator[Setup]:
    """Make all set-ups."""
    for kind, trained, load in (
        ("v100", "vgg16", 0.15),
        ("v100", "vgg16", 0.4),
        ("v100", "resnet50", 0.15),
        ("2080ti", "vgg16", 0.15),
    ):
        for served in SERVED:
            yield beside_training(kind, trained, served, load, seconds)
    yield harvest(seconds)
    yield equal_trainings(seconds)
    for second in ("", "1080ti", "cpu"):
        yield two_trainings(second, seconds)


def compare(setup: Setup) -> list[dict[str, Any]]:
    """Simulate a set-up without its jobs and under every policy."""
    results = []
    if setup.load and not setup.name.startswith("v100: four"):
        alone = simulate_jobs(registry.load("switchflow"), replace(setup.scenario, jobs=()))
        results.append(_result(setup, "alone", alone, None))
    unmanaged_ms = None
    for policy in POLICIES:
        apart = policy == "processes"
        if apart and any(isinstance(load, TaskTrace) for load in setup.scenario.requests):
            continue  # its batches would begin as planned, and take twice as long
        scenario = replace(setup.scenario, sharing="slices") if apart else setup.scenario
        outcome = simulate_jobs(registry.load("unmanaged" if apart else policy), scenario)
        result = _result(setup, policy, outcome, unmanaged_ms)
        if policy == "unmanaged":
            unmanaged_ms = result["p99_ms"]
        results.append(result)
    return results


def _result(setup: Setup, policy: str, outcome: JobsOutcome, unmanaged_ms: float | None) -> dict[str, Any]:
    latencies = [
        latency
        for requests in outcome.requests.values()
        for latency in requests.latencies_ns + requests.unanswered_ns
    ]
    p99_ns = percentile_ns(latencies, 99)
    p99_ms = None if p99_ns is None else p99_ns / _MS
    below = unmanaged_ms / p99_ms if unmanaged_ms and p99_ms else None
    fraction = sum(job.fraction for job in outcome.jobs.values())
    target, met = "", None
    if policy == "switchflow" and setup.load:
        least = KEPT * (1 - _taken(setup, outcome))
        met = fraction >= least
        target = f"training >= {least:.3f}"
        if setup.tenfold and below is not None:
            met = met and below >= TENFOLD
            target = f"p99 {TENFOLD:g} x below unmanaged, {target}"
    elif policy == "switchflow":
        met = all(job.failure is None for job in outcome.jobs.values())
        target = "no failure"
    return {
        "setup": setup.name,
        "policy": policy,
        "p99_ms": p99_ms,
        "below": below,
        "train_fraction": fraction,
        "jobs": {name: job.fraction for name, job in outcome.jobs.items()},
        "failures": {name: job.failure for name, job in outcome.jobs.items() if job.failure},
        "peak_nbytes": max(outcome.peak_nbytes.values()),
        "target": target,
        "met": met,
    }


def _taken(setup: Setup, outcome: JobsOutcome) -> float:
    """Part of the time for which the requests really computed."""
    busy_ns = sum(
        len(outcome.requests[load.name].latencies_ns) * load.program.run_ns
        for load in setup.scenario.requests
        if isinstance(load, RequestLoad)
    )
    return busy_ns / (outcome.seconds * 1e9) if busy_ns else setup.load


def _trained(result: dict[str, Any]) -> str:
    """What training kept, of each job where there are several."""
    jobs: dict[str, float] = result["jobs"]
    failed: dict[str, str] = result["failures"]
    parts = [f"{name} {failed.get(name, f'{part:.2f}')}" for name, part in jobs.items()]
    if len(parts) == 1:
        return f"{result['train_fraction']:.2f}"
    return ", ".join(parts)
