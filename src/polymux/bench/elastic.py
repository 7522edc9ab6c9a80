"""Two applications of different priority on two devices: what each loses against running alone.

The experiment of Arax (section "Elasticity"): an application of low priority has grown on to both devices when one of
high priority arrives and takes one of them.

References
----------
S. Mavridis et al., "Arax: a runtime framework for decoupling applications from heterogeneous accelerators", SoCC 2022.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

import polymux
from polymux.bench import elastic_simulated
from polymux.bench.bench_server import BenchServer
from polymux.bench.effort import MIB, Effort
from polymux.bench.report import Progress, Report, Row
from polymux.bench.warm_memory import warm_memory
from polymux.core.errors import PolymuxError

SIZES = (4 * MIB, 32 * MIB, 256 * MIB)
"""Bytes of the state of each application's queue."""
HIGH_S, LOW_S, HEAD_START_S = 1.5, 3.0, 0.4
"""Run time of the high priority's queue, of all queues of the low priority on one device, and its head start."""
LOW_QUEUES = 2
MEMORIES = 2 * (LOW_QUEUES + 1) + LOW_QUEUES
"""How often a state lies in memory: in its segment, on a device, and on another one after a move."""
HIGH_TARGET = 1.05
CONSTANTS = {"step": 1e-4, "capacity": 0.5, "rx": 1.0, "ry": 1.0, "rz": 4.0}
CAPACITY = 1 << 16
MAX_STEPS = CAPACITY - 16
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class _Devices:
    """Device requests: two devices with a memory each, and each of them alone."""

    both: tuple[str, str]

    @property
    def first(self) -> tuple[str]:
        return self.both[:1]

    @property
    def second(self) -> tuple[str]:
        return self.both[1:]


class _Application:
    """Steps of a stencil in some queues, each on a state of its own."""

    def __init__(self, socket: str, name: str, nbytes: int, queues: int, steps: int, priority: int) -> None:
        segment_nbytes = queues * (nbytes + CAPACITY * 600) + 64 * MIB
        self.client = polymux.connect(socket, name=name, start=False, segment_nbytes=segment_nbytes)
        self.steps, self.queues, self.priority = steps, queues, priority
        rows = max(1, nbytes // 3 // 4 // 1024)
        self.setup = self.client.queue()
        start = np.linspace(20, 90, rows * 1024, dtype="f4").reshape(rows, 1024)
        self.states = [
            (self.setup.array(start + index), self.setup.zeros(start.shape), self.setup.zeros(start.shape))
            for index in range(queues)
        ]
        self.opened: list[Any] = []
        self.seconds = 0.0

    def run(self) -> None:
        """Open the queues, issue every step and wait; `seconds` tells how long that took."""
        start_s = time.perf_counter()
        self.opened = [self.client.queue(priority=self.priority, capacity=CAPACITY) for _ in self.states]
        for step in range(self.steps):
            for queue, (now, then, power) in zip(self.opened, self.states, strict=True):
                source, target = (now, then) if step % 2 == 0 else (then, now)
                queue.submit("stencil", [source, power], [target], **CONSTANTS)
        for queue in self.opened:
            queue.synchronize(TIMEOUT_S)
        self.seconds = time.perf_counter() - start_s

    def close(self) -> list[bytes]:
        """End it; what each state was in the end, in short."""
        results = [
            state[self.steps % 2].numpy(TIMEOUT_S)[:: max(1, len(state[0]) // 64)].tobytes()
            for state in self.states
        ]
        self.client.close()
        return results


def run(effort: Effort, progress: Progress) -> Report:
    """Run the experiment for each size, and in the simulator with the speeds of the paper's devices."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise PolymuxError(f"two devices need two cores; this process may use core {cores[0]} only")
    devices = _Devices((f"cpu:{cores[0]},streams=1", f"cpu:{cores[1]},streams=1"))
    sizes = [nbytes for nbytes in SIZES if nbytes <= max(effort.largest_nbytes, SIZES[0])]
    scale = 1.0 if effort.rounds > 2 else 0.25
    results = [_measure(nbytes, devices, effort.rounds, scale, progress) for nbytes in sizes]
    simulated = elastic_simulated.run(progress)
    return Report(
        "elastic",
        "an application of high priority arrives where one of low priority has all devices",
        (*(row for result in results for row in _rows(result)), *elastic_simulated.rows(simulated)),
        [*results, *simulated],
        (
            f"stencil steps on cpu devices of one core and own memory; policy elastic; {effort.rounds} rounds, medians",
            "memory is touched before each round: a virtual machine gets it from its host at the first touch",
            "alone: on the same server without the other; low: on one device, plus the time that high took",
            "apart: high on a server and device of its own while low works on the other core: what the machine costs",
            *elastic_simulated.NOTES,
        ),
    )


def _measure(nbytes: int, devices: _Devices, rounds: int, scale: float, progress: Progress) -> dict[str, Any]:
    size = f"{nbytes // MIB} MiB"
    progress(f"{size}: how long a step takes")
    step_s = _step_s(nbytes, devices)
    high_steps = _steps(HIGH_S * scale / step_s)
    low_steps = _steps(LOW_S * scale / step_s / LOW_QUEUES)
    found: dict[str, list[float]] = {"high": [], "high_alone": [], "low": [], "low_bound": [], "apart": []}
    migrations = 0
    for index in range(rounds):
        progress(f"{size}: round {index + 1} of {rounds}")
        warm_memory(MEMORIES * nbytes)
        with BenchServer(devices.both, "--policy", "elastic") as server:
            high_alone, expected_high = _alone(server, nbytes, 1, high_steps, 10)
        with BenchServer(devices.first, "--policy", "elastic") as server:
            low_alone, expected_low = _alone(server, nbytes, LOW_QUEUES, low_steps, 0)
        with BenchServer(devices.both, "--policy", "elastic") as server:
            low = _Application(server.socket, "low", nbytes, LOW_QUEUES, low_steps, 0)
            high = _Application(server.socket, "high", nbytes, 1, high_steps, 10)
            _together(low, high, HEAD_START_S * scale)
            migrations = _migrations(high)
            _check("low", low.close(), expected_low)
            _check("high", high.close(), expected_high)
        with BenchServer(devices.first) as server, BenchServer(devices.second) as other:
            stranger = _Application(other.socket, "low", nbytes, LOW_QUEUES, low_steps, 0)
            apart = _Application(server.socket, "high", nbytes, 1, high_steps, 10)
            _together(stranger, apart, HEAD_START_S * scale)
            stranger.close()
            apart.close()
        for key, value in (
            ("high", high.seconds),
            ("high_alone", high_alone),
            ("low", low.seconds),
            ("low_bound", low_alone + high.seconds),
            ("apart", apart.seconds),
        ):
            found[key].append(value)
    middle = {key: median(values) for key, values in found.items()}
    return {
        "nbytes": nbytes,
        "high_ratio": middle["high"] / middle["high_alone"],
        "low_ratio": middle["low"] / middle["low_bound"],
        "apart_ratio": middle["apart"] / middle["high_alone"],
        "high_s": middle["high"],
        "high_alone_s": middle["high_alone"],
        "low_s": middle["low"],
        "low_bound_s": middle["low_bound"],
        "migrations": migrations,
        "simulated": False,
    }


def _step_s(nbytes: int, devices: _Devices) -> float:
    with BenchServer(devices.first) as server:
        steps = 8
        while True:
            application = _Application(server.socket, "alone", nbytes, 1, steps, 0)
            for _ in range(2):  # the first one also brings the data to the device
                application.run()
            application.close()
            if application.seconds > 0.2 or steps >= MAX_STEPS:
                return application.seconds / steps
            steps = min(MAX_STEPS, steps * 4)


def _steps(wanted: float) -> int:
    return max(4, min(MAX_STEPS, round(wanted)))


def _alone(
    server: BenchServer, nbytes: int, queues: int, steps: int, priority: int
) -> tuple[float, list[bytes]]:
    application = _Application(server.socket, "alone", nbytes, queues, steps, priority)
    application.run()
    return application.seconds, application.close()


def _together(low: _Application, high: _Application, head_start_s: float) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            low.run()
        except BaseException as failure:  # told to the caller, who waits
            failures.append(failure)

    thread = threading.Thread(target=work, name="low priority")
    thread.start()
    time.sleep(head_start_s)
    high.run()
    thread.join()
    if failures:
        raise failures[0]


def _migrations(application: _Application) -> int:
    reply, _ = application.client.request("status", {})
    return sum(int(queue["migrations"]) for queue in json.loads(reply["json"])["queues"])


def _check(name: str, results: list[bytes], expected: list[bytes]) -> None:
    if results != expected:
        raise PolymuxError(f"the {name} priority's result differs from that of the same steps alone")


def _rows(result: dict[str, Any]) -> tuple[Row, ...]:
    size = f"{result['nbytes'] // MIB} MiB"
    high, low = result["high_ratio"], result["low_ratio"]
    apart = result["apart_ratio"] * result["high_alone_s"]
    return (
        Row(
            f"high, {size}",
            result["high_s"],
            "s",
            result["high_alone_s"],
            "alone",
            f"<= {HIGH_TARGET} x",
            high <= HIGH_TARGET,
        ),
        Row(f"high apart, {size}", apart, "s", result["high_alone_s"], "alone"),
        Row(f"low, {size}", result["low_s"], "s", result["low_bound_s"], "bound", "<= 1 x", low <= 1.0),
    )
