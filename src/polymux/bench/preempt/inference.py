"""The inference process: requests at given times, whether or not earlier ones have been answered, in their order.

``python -m polymux.bench.preempt.inference ARGUMENTS`` is a `polymux.bench.preempt.worker.Worker`. Its arguments are
the model's name and file, the number of cores and the folder of the gate.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polymux.bench.preempt.configurations import Threads
from polymux.bench.preempt.gate import InferenceSide
from polymux.bench.preempt.served import served
from polymux.bench.preempt.worker import reply
from polymux.onnxgraph.file import load_model
from polymux.onnxgraph.inputs import item_inputs
from polymux.profiling.samples import find_sample

LEAD_NS = 20_000_000
"""From the last request that warms up to the beginning of the load."""
WARM_REQUESTS = 5
MEASURE_S = 2.0
PAUSE = 5
"""Between requests whose time is measured, in times of a request: caches and cores are not kept warm for them."""

Infer = Callable[[], object]
"""Computes the answer to one request."""


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a load.

    Attributes
    ----------
    start_ns : int
        Its beginning, by the monotonic clock.
    latencies_ns : list of int
        Of each request, from when it was due to its answer.
    waits_ns : list of int
        How long the process waited for the cores, each time that it wanted them.
    """

    start_ns: int
    latencies_ns: list[int]
    waits_ns: list[int]


def serve(infer: Infer, times_ns: Sequence[int], gate: InferenceSide | None) -> Served:
    """Answer requests that come at some times from now on, ascending."""
    for _ in range(WARM_REQUESTS):
        _take(gate)
        infer()
        if gate is not None:
            gate.give()
    start_ns = time.perf_counter_ns() + LEAD_NS
    latencies, waits = [], []
    for at, due in enumerate(times_ns):
        early_ns = start_ns + due - time.perf_counter_ns()
        if early_ns > 0:
            time.sleep(early_ns * 1e-9)
        if gate is not None and not gate.held:
            waits.append(gate.take())
        infer()
        now = time.perf_counter_ns()
        latencies.append(now - start_ns - due)
        if gate is not None and (at + 1 == len(times_ns) or times_ns[at + 1] > now - start_ns):
            gate.give()
    return Served(start_ns, latencies, waits)


def _take(gate: InferenceSide | None) -> None:
    if gate is not None:
        gate.take()


class Model:
    """A model with its sessions, one for each way of waiting."""

    def __init__(self, name: str, path: Path, cores: int) -> None:
        self._name = name
        self._path = path
        self._cores = cores
        self._sessions: dict[Threads, Infer] = {}
        sample = find_sample(name)
        model = load_model(path)
        self._inputs = item_inputs(name, model, sample.shapes, sample.values)
        rng = np.random.default_rng(0)
        self._feed = {item.name: np.ascontiguousarray(item.values(1, rng)) for item in self._inputs}

    def infer(self, threads: Threads) -> Infer:
        """Return what computes one request, loading a session the first time."""
        if threads not in self._sessions:
            self._sessions[threads] = self._load(threads)
        return self._sessions[threads]

    def through(self, socket: str) -> AbstractContextManager[Infer]:
        """Return what has one request computed by a server."""
        return served(self._name, self._path, self._inputs, socket)

    def service_ns(self, threads: Threads) -> int:
        """Measure the median time of a request alone, with pauses between requests as at a low load."""
        infer = self.infer(threads)
        for _ in range(WARM_REQUESTS):
            infer()
        found: list[int] = []
        end = time.perf_counter() + MEASURE_S
        while time.perf_counter() < end:
            start = time.perf_counter_ns()
            infer()
            found.append(time.perf_counter_ns() - start)
            time.sleep(PAUSE * found[-1] * 1e-9)
        return int(np.median(found))

    def _load(self, threads: Threads) -> Infer:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads != "defaults":
            options.intra_op_num_threads = self._cores
            options.inter_op_num_threads = 1
            spins = "0" if threads == "sleeping" else "1"
            options.add_session_config_entry("session.intra_op.allow_spinning", spins)
            stops = "1" if threads == "running" else "0"
            options.add_session_config_entry("session.force_spinning_stop", stops)
        session = onnxruntime.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, self._feed)


def main(arguments: dict[str, Any]) -> None:
    """Carry out commands until there are no more.

    ``{"do": "measure", "threads": T}`` measures the time of a request;
    ``{"do": "serve", "threads": T, "times_ns": [...], "gate": true, "socket": null}`` answers requests, by way of the
    server at a socket if there is one.
    """
    model = Model(arguments["model"], Path(arguments["path"]), arguments["cores"])
    with ExitStack() as stack:
        gate = InferenceSide(Path(arguments["gate"]))
        stack.callback(gate.close)
        gc.collect()
        gc.disable()  # no request waits for it
        reply({})
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "measure":
                reply({"service_ns": model.service_ns(command["threads"])})
            elif command["socket"]:
                with model.through(command["socket"]) as infer:
                    reply(asdict(serve(infer, command["times_ns"], None)))
            else:
                infer = model.infer(command["threads"])
                reply(asdict(serve(infer, command["times_ns"], gate if command["gate"] else None)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
