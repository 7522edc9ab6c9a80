"""One model at one load: every configuration in turns, round after round, until the figures are steady."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polymux.bench.cores import pinned_to
from polymux.bench.preempt.configurations import CONFIGURATIONS, TRAINERS, Configuration
from polymux.bench.preempt.figures import Figures, Round, Turn, steady, steps_per_s, together
from polymux.bench.preempt.gate import make_gate
from polymux.bench.preempt.machine import Machine
from polymux.bench.preempt.served import server_on, wait_p99_ms
from polymux.bench.preempt.worker import Worker
from polymux.bench.report import Progress
from polymux.profiling.private_server import PrivateServer
from polymux.profiling.samples import write_sample

DISTURBED = 0.05
"""Part of the cores' time that others take at most in a round that counts."""
SETTLE_S = 0.5
"""Training goes on for so long before a load begins."""
TRAIN_ALONE_S = 4.0
"""Longest that training alone is watched in a round."""
TIMEOUT_S = 120.0
"""Beyond the length of a load."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes
    ----------
    models, loads : tuple
    requests : int
        Of a load, as far as the seconds allow.
    seconds : (float, float)
        Shortest and longest load.
    rounds : (int, int)
        That count: fewest, and most until the figures are steady.
    budget_s : float
        No round beyond the fewest begins that would not have ended after so long, for one model at one load.
    configurations : tuple of Configuration
    """

    models: tuple[str, ...]
    loads: tuple[float, ...]
    requests: int
    seconds: tuple[float, float]
    rounds: tuple[int, int]
    budget_s: float
    configurations: tuple[Configuration, ...] = CONFIGURATIONS

    def seconds_at(self, rate_per_s: float) -> float:
        """Length of a load of so many requests a second."""
        return float(np.clip(self.requests / rate_per_s, *self.seconds))


@dataclass(frozen=True, slots=True)
class Cell:
    """What was found about one model at one load.

    Attributes
    ----------
    model : str
    load : float
    service_ms : float
        Median time of a request alone.
    rate_per_s, seconds : float
        Of the load.
    rounds, disturbed : int
        That count, and that were discarded because other processes took too much.
    others : float
        Part of the cores' time that others took in the worst round that counts.
    found : mapping of str to Figures
    """

    model: str
    load: float
    service_ms: float
    rate_per_s: float
    seconds: float
    rounds: int
    disturbed: int
    others: float
    found: Mapping[str, Figures]


class Bench:
    """The processes: one for inference with a model, and one for each kind of training; use `opened`."""

    def __init__(self, inference: Worker, trainers: Mapping[str, Worker], cores: Sequence[int]) -> None:
        self._inference = inference
        self._trainers = trainers
        self._cores = tuple(cores)
        self._machine = Machine(cores)
        self._pids = [os.getpid(), inference.pid, *(worker.pid for worker in trainers.values())]

    def service_ns(self) -> int:
        """Measure the time of a request alone, with the best way of waiting."""
        ways = ("spinning", "sleeping")
        return min(
            int(self._inference.ask(TIMEOUT_S, do="measure", threads=way)["service_ns"]) for way in ways
        )

    def measure(
        self, configuration: Configuration, times_ns: Sequence[int], seconds: float
    ) -> tuple[Turn, float]:
        """Run a load, or nothing but training; also tells which part of the cores' time others took."""
        if configuration.threads != "server":
            return self._measure(configuration, times_ns, seconds, None)
        with server_on(self._cores) as server:
            return self._measure(configuration, times_ns, seconds, server)

    def _measure(
        self,
        configuration: Configuration,
        times_ns: Sequence[int],
        seconds: float,
        server: PrivateServer | None,
    ) -> tuple[Turn, float]:
        socket = server.socket if server is not None else None
        pids = [*self._pids, *([server.pid] if server is not None else [])]
        trainer = self._trainers[configuration.trainer] if configuration.trainer else None
        if configuration.threads is None:
            seconds = min(seconds, TRAIN_ALONE_S)
        if trainer is not None:
            trainer.ask(TIMEOUT_S, do="train", boundary=configuration.boundary, socket=socket)
            time.sleep(SETTLE_S)
        before = self._machine.usage(pids)
        start_ns, latencies, waits = self._load(configuration, times_ns, seconds, socket)
        left_s = (start_ns - time.perf_counter_ns()) / 1e9 + seconds
        time.sleep(max(0.0, left_s))
        after = self._machine.usage(pids)
        train_per_s = None
        if trainer is not None:
            ends = trainer.ask(TIMEOUT_S, do="stop")["ends_ns"]
            train_per_s = steps_per_s(ends, start_ns, start_ns + round(seconds * 1e9))
        known = wait_p99_ms(server) if server is not None else None
        return Turn(latencies, waits, train_per_s, known), self._machine.others(before, after)

    def _load(
        self, configuration: Configuration, times_ns: Sequence[int], seconds: float, socket: str | None
    ) -> tuple[int, list[int], list[int]]:
        if configuration.threads is None:
            return time.perf_counter_ns(), [], []
        answer = self._inference.ask(
            TIMEOUT_S + seconds,
            do="serve",
            threads=configuration.threads,
            times_ns=list(times_ns),
            gate=configuration.boundary in ("step", "subgraph"),
            socket=socket,
        )
        return answer["start_ns"], answer["latencies_ns"], answer["waits_ns"]


@contextmanager
def opened(model: str, folder: Path, cores: Sequence[int], trainers: Mapping[str, Worker]) -> Iterator[Bench]:
    """Start the inference process of a model."""
    path = write_sample(model, folder / f"{model}.onnx")
    arguments = {"model": model, "path": str(path), "cores": len(cores), "gate": str(folder)}
    with (
        pinned_to(frozenset(cores)),
        Worker(f"inference ({model})", "polymux.bench.preempt.inference", arguments) as inference,
    ):
        inference.wait_until_ready()
        yield Bench(inference, trainers, cores)


@contextmanager
def opened_trainers(names: Sequence[str], folder: Path, cores: Sequence[int]) -> Iterator[dict[str, Worker]]:
    """Start the training processes, which wait until they are told to train."""
    make_gate(folder)
    with pinned_to(frozenset(cores)), ExitStack() as stack:
        workers = {}
        for name in names:
            kind = TRAINERS[name]
            arguments = {
                "threads": len(cores) if kind.threads else 0,
                "idle": kind.idle,
                "gate": str(folder),
            }
            worker = Worker(
                f"training ({name})", "polymux.bench.preempt.trainer", arguments, kind.environment
            )
            workers[name] = stack.enter_context(worker)
        for worker in workers.values():
            worker.wait_until_ready()
        yield workers


def arrivals(rate_per_s: float, seconds: float, seed: Sequence[int]) -> list[int]:
    """Draw when requests come, in ns, ascending: a Poisson process of which the number of arrivals is given."""
    rng = np.random.default_rng(list(seed))
    count = max(1, round(rate_per_s * seconds))
    return [int(at) for at in np.sort(rng.integers(0, round(seconds * 1e9), count))]


def measure_cell(
    bench: Bench, model: str, load: float, service_ns: int, size: Size, progress: Progress
) -> Cell:
    """Measure every configuration in rounds until the figures are steady, or for as long as there may be."""
    began = time.monotonic()
    rate = load / service_ns * 1e9
    seconds = size.seconds_at(rate)
    fewest, most = size.rounds
    counted: list[tuple[float, Round]] = []
    disturbed: list[tuple[float, Round]] = []
    for index in range(2 * most):
        what = f"{model} at {load:.0%}, round {len(counted) + 1} of {fewest} to {most}"
        if disturbed:
            what += f" ({len(disturbed)} disturbed by other processes)"
        times_ns = arrivals(rate, seconds, (index, size.models.index(model), round(load * 1000)))
        found = _round(bench, size.configurations, index, times_ns, seconds, what, progress)
        (disturbed if found[0] > DISTURBED else counted).append(found)
        if len(counted) >= most or (len(counted) >= fewest and steady([turns for _, turns in counted])):
            break
        if not counted and len(disturbed) >= fewest:
            break  # a busy machine: it will not become better by waiting
        spent_s = time.monotonic() - began
        if index + 1 >= fewest and spent_s * (index + 2) / (index + 1) > size.budget_s:
            break
    used = counted or sorted(disturbed, key=lambda turn: turn[0])[:fewest]
    return Cell(
        model,
        load,
        service_ns / 1e6,
        rate,
        seconds,
        len(used),
        len(disturbed) if counted else 0,
        max(others for others, _ in used),
        together([turns for _, turns in used]),
    )


def _round(
    bench: Bench,
    configurations: Sequence[Configuration],
    index: int,
    times_ns: Sequence[int],
    seconds: float,
    what: str,
    progress: Progress,
) -> tuple[float, Round]:
    """Measure each configuration once, beginning with another one each time."""
    turn = index % len(configurations)
    found: dict[str, Turn] = {}
    worst = 0.0
    for configuration in (*configurations[turn:], *configurations[:turn]):
        progress(f"{what}: {configuration.name}")
        found[configuration.name], others = bench.measure(configuration, times_ns, seconds)
        worst = max(worst, others)
    return worst, found
