"""Benchmarks of the runtime through its public interface, each against a baseline measured in the same run.

``polymux bench NAME`` runs one. `BENCHMARKS` names the module of each; a module has ``run(effort, progress)``,
which returns a `polymux.bench.report.Report`.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from polymux.bench.effort import Effort
from polymux.bench.report import Progress, Report

BENCHMARKS = {
    "issue": "polymux.bench.issue",
    "roundtrip": "polymux.bench.roundtrip",
    "transfer": "polymux.bench.transfer",
    "throughput": "polymux.bench.throughput",
    "migrate": "polymux.bench.migrate",
    "training": "polymux.bench.training",
    "apps": "polymux.bench.apps",
    "elastic": "polymux.bench.elastic",
    "decide": "polymux.bench.decide",
    "simulate": "polymux.bench.simulate",
    "dstack": "polymux.bench.dstack",
    "policies": "polymux.bench.policies.benchmark",
    "reuse": "polymux.bench.reuse.benchmark",
    "cluster": "polymux.bench.cluster",
    "preempt": "polymux.bench.preempt.benchmark",
    "switchflow": "polymux.bench.switchflow",
    "coexec": "polymux.bench.coexec.benchmark",
}
"""Name of a benchmark -> its module."""


def run(name: str, effort: Effort, progress: Progress) -> Report:
    """Run one benchmark.

    Parameters
    ----------
    name : str
        A key of `BENCHMARKS`.
    effort : Effort
        How often to repeat, and how much to move.
    progress : callable
        Called with what comes next.

    Raises
    ------
    KeyError
        For a name that no benchmark has.
    PolymuxError
        When the benchmark's server or C program does not run.
    """
    return cast(Report, import_module(BENCHMARKS[name]).run(effort, progress))
