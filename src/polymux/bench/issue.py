"""What one task issue costs the application, from Python and from C."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import polymux
from polymux.bench import cbench
from polymux.bench.bench_server import BenchServer, device_on
from polymux.bench.cores import Cores, choose_cores, pinned_to
from polymux.bench.effort import Effort
from polymux.bench.report import Progress, Report, Row
from polymux.segment import cycles

BATCH = 64
PYTHON_TARGET = 700
C_TARGET = 200
KERNEL = "bench_empty"


def run(effort: Effort, progress: Progress) -> Report:
    """Measure `submit` with two buffers and 16 bytes of scalars while the server drains the queue."""
    cores = choose_cores()
    found: dict[str, list[float]] = {}
    with BenchServer([device_on(cores)]) as server:
        for index in range(effort.rounds):
            progress(f"round {index + 1} of {effort.rounds}")
            with pinned_to({cores.client}):
                figures = _measure_python(server.socket, effort.calls)
            figures |= _measure_c(server.socket, effort.calls, cores)
            for name, value in figures.items():
                found.setdefault(name, []).append(value)
    results = {name: median(values) for name, values in found.items()}
    notes = (
        f"two buffers, 16 bytes of scalars, server draining; {effort.rounds} rounds of {effort.calls} calls, medians",
        f"Python: means of batches of {BATCH}, the loop included; C: single calls, the timer's own cost subtracted",
        f"cycles of the time stamp counter ({results['cycles_per_ns']:.2f} per ns); {cores.note}",
    )
    return Report("issue", "cycles for one task issue", _rows(results), results, notes)


def _rows(cycles: dict[str, float]) -> tuple[Row, ...]:
    python, c, call = cycles["python_cycles"], cycles["c_cycles"], cycles["python_call_cycles"]
    ring = cycles["ring_cycles"]
    return (
        Row(
            "from Python",
            python,
            "cycles",
            call,
            "empty call",
            f"<= {PYTHON_TARGET}",
            python <= PYTHON_TARGET,
        ),
        Row("  single calls", cycles["python_single_cycles"], "cycles", call, "empty call"),
        Row("from C", c, "cycles", ring, "bare ring", f"<= {C_TARGET}", c <= C_TARGET),
        Row("  within batches", cycles["c_batched_cycles"], "cycles", ring, "bare ring"),
    )


def _measure_c(socket: str, calls: int, cores: Cores) -> dict[str, float]:
    pinned = {"core": cores.client}
    issue = cbench.measure("issue", socket=socket, kernel=KERNEL, rounds=calls, **pinned)
    ring = cbench.measure("stream", rounds=10 * calls, peer_core=cores.server, **pinned)
    return {
        "c_cycles": issue["cycles"],
        "c_batched_cycles": issue["batched_cycles"],
        "ring_cycles": ring["cycles"],
        "cycles_per_ns": issue["cycles_per_ns"],
    }


def _measure_python(socket: str, calls: int) -> dict[str, float]:
    with polymux.connect(socket, name="bench", start=False) as client, client.queue() as queue:
        inputs, outputs = [queue.empty((1024,), "f4")], [queue.empty((1024,), "f4")]
        submit, synchronize = queue.submit, queue.synchronize
        batched, single, loop, call, timer = [], [], [], [], []
        with _no_collection():
            for _ in range(-(-calls // BATCH)):
                start = cycles()
                for _ in range(BATCH):
                    submit(KERNEL, inputs, outputs, scale=2.0, count=1024)
                batched.append((cycles() - start) / BATCH)
                synchronize()
                for _ in range(BATCH):
                    start = cycles()
                    submit(KERNEL, inputs, outputs, scale=2.0, count=1024)
                    single.append(cycles() - start)
                synchronize()
                start = cycles()
                for _ in range(BATCH):
                    pass
                loop.append((cycles() - start) / BATCH)
                start = cycles()
                for _ in range(BATCH):
                    cycles()
                call.append((cycles() - start) / BATCH)
                start = cycles()
                timer.append(cycles() - start)
    return {
        "python_cycles": median(batched),
        "python_single_cycles": median(single) - median(timer),
        "python_loop_cycles": median(loop),
        "python_call_cycles": median(call),
    }


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from running in the middle of a measurement, as `timeit` does."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
