"""Issue one empty task and wait for it, against a bare ring and a bare futex between two processes."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

import polymux
from polymux.bench import cbench
from polymux.bench.bench_server import BenchServer, device_on
from polymux.bench.cores import Cores, choose_cores, pinned_to
from polymux.bench.effort import Effort
from polymux.bench.report import Progress, Report, Row

PAUSE_US = 2000
NATIVE, PYTHON = "bench_empty", "bench_empty_python"
AWAKE_TARGET, SLEPT_TARGET, PYTHON_TARGET_US = 2.0, 1.3, 15.0


def run(effort: Effort, progress: Progress) -> Report:
    """Measure the round trip of an empty native and an empty Python kernel, awake and after both sides slept."""
    cores = choose_cores()
    found: dict[str, list[float]] = {}
    with BenchServer([device_on(cores)]) as server:
        steps = _steps(server.socket, cores, effort)
        for index in range(effort.rounds):
            for name, step in steps.items():
                progress(f"round {index + 1} of {effort.rounds}: {name}")
                found.setdefault(name, []).append(step())
    us = {name: median(values) for name, values in found.items()}
    return Report(
        "roundtrip",
        "issue one empty task and wait for it",
        _rows(us),
        us,
        (
            f"{effort.rounds} rounds, the measurements taking turns, medians",
            f"after sleep: {PAUSE_US} us pause before each call",
            "from C unless said otherwise; the baselines pause and pin as the measurements do",
            cores.note,
        ),
    )


def _steps(socket: str, cores: Cores, effort: Effort) -> dict[str, Callable[[], float]]:
    def bare(kind: str, rounds: int, pause_us: int) -> float:
        options = {"rounds": rounds, "pause_us": pause_us, "core": cores.client, "peer_core": cores.server}
        return cbench.measure(kind, **options)["us"]

    def task(kernel: str, rounds: int, pause_us: int) -> float:
        options = {
            "socket": socket,
            "kernel": kernel,
            "rounds": rounds,
            "pause_us": pause_us,
            "core": cores.client,
        }
        return cbench.measure("roundtrip", **options)["us"]

    def from_python() -> float:
        with pinned_to({cores.client}):
            return _measure_python(socket, effort.calls)

    return {
        "pingpong_us": lambda: bare("ring", effort.calls, 0),
        "native_us": lambda: task(NATIVE, effort.calls, 0),
        "python_us": lambda: task(PYTHON, max(effort.calls // 4, 100), 0),
        "python_client_us": from_python,
        "futex_us": lambda: bare("futex", effort.sleeps, PAUSE_US),
        "native_slept_us": lambda: task(NATIVE, effort.sleeps, PAUSE_US),
        "python_slept_us": lambda: task(PYTHON, effort.sleeps, PAUSE_US),
    }


def _measure_python(socket: str, calls: int) -> float:
    """Median round trip in microseconds of an empty native kernel from a Python application."""
    with polymux.connect(socket, name="bench", start=False) as client, client.queue() as queue:
        inputs, outputs = [queue.empty((1024,), "f4")], [queue.empty((1024,), "f4")]
        times = []
        for _ in range(calls):
            start = perf_counter_ns()
            queue.submit(NATIVE, inputs, outputs, scale=2.0, count=1024).wait()
            times.append(perf_counter_ns() - start)
    return median(times) / 1000


def _rows(us: dict[str, float]) -> tuple[Row, ...]:
    native, ring, slept, futex = us["native_us"], us["pingpong_us"], us["native_slept_us"], us["futex_us"]
    python, python_slept = us["python_us"], us["python_slept_us"]
    awake_met, slept_met = native <= AWAKE_TARGET * ring, slept <= SLEPT_TARGET * futex
    added_met = python - native <= PYTHON_TARGET_US
    return (
        Row("native kernel, awake", native, "us", ring, "bare ring", f"<= {AWAKE_TARGET} x", awake_met),
        Row("  after sleep", slept, "us", futex, "bare futex", f"<= {SLEPT_TARGET} x", slept_met),
        Row("  issued from Python", us["python_client_us"], "us", native, "from C"),
        Row(
            "Python kernel, awake", python, "us", native, "native", f"<= +{PYTHON_TARGET_US:g} us", added_met
        ),
        Row("  after sleep", python_slept, "us", slept, "native"),
    )
