"""How long a queue stands still when it moves to another device with its data, against a bare copy of the data."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

import numpy as np

import polymux
from polymux.bench.bare_copy import BareCopies
from polymux.bench.bench_server import BenchServer
from polymux.bench.effort import MIB, Effort
from polymux.bench.report import Progress, Report, Row
from polymux.client import Client, Queue
from polymux.core.errors import DeviceUnavailable, PolymuxError

SIZES = tuple(mib * MIB for mib in (1, 4, 16, 64, 256, 1024))
KERNEL = "bench_step"
TURNS = 1_600_000
"""Of the kernel: long enough for the application to have the next tasks ready, about half a millisecond."""
AHEAD = 64
"""Tasks that wait in the queue."""
BETWEEN = 12
"""Tasks that run on a device before the queue moves on."""
WARM_UPS = 2
TIMEOUT_S = 60.0
FACTOR = 1.2


@dataclass(frozen=True, slots=True)
class Pair:
    """Two devices between which a queue moves to and fro.

    Parameters
    ----------
    names : tuple of str
        For people; of the memories.
    requests : tuple of str
        As ``polymux up --device`` takes them.
    """

    names: tuple[str, str]
    requests: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Moved:
    """One queue that was moved: how often which of its tasks ended where is in the timeline."""

    pair: Pair
    queue: str
    nbytes: int
    written: bool
    bare_ms: list[float]


def run(effort: Effort, progress: Progress) -> Report:
    """Move queues whose tasks write, or read, a buffer of some size; compare with the copy alone."""
    sizes = [nbytes for nbytes in SIZES if nbytes <= effort.largest_nbytes]
    results: list[dict[str, Any]] = []
    notes = []
    for pair in _pairs():
        try:
            results += _measure_pair(pair, sizes, effort.rounds, progress)
        except DeviceUnavailable as error:
            notes.append(f"{pair.names[0]} and {pair.names[1]} were left out: {error}")
    notes += [
        f"gap: from the end of the last task on the old device to the end of the first one on the new device, less a"
        f" usual task's time there, from the server's timeline; medians of {effort.rounds} moves each way",
        "written: every task writes into the data, so all of it is copied in the gap; read: tasks only read it, and it"
        " is copied before the switch",
        "bare copy: the same copy call between the same devices without the runtime, into memory that is in use"
        f" already; target: {FACTOR} x bare copy plus one task",
        f"the queue has {AHEAD} tasks ahead at any time; first touches are in the {WARM_UPS} moves each way that do"
        " not count",
    ]
    return Report(
        "migrate",
        "a queue moves to another device with its data",
        tuple(_row(item) for item in results),
        results,
        tuple(notes),
    )


def _pairs() -> tuple[Pair, ...]:
    cores = sorted(os.sched_getaffinity(0))[:2]
    # Two ways to write a core, so that a machine with one of them is asked for two devices nevertheless.
    first, second = f"cpu:{cores[0]}-{cores[0]},streams=1", f"cpu:{cores[-1]},streams=1"
    return (
        Pair(("cpu:0", "cpu:1"), (first, second)),
        Pair(("cpu", "opencl"), (first, "opencl:0,streams=1")),
        Pair(("host", "cpu"), (f"{first},memory=host", second)),
    )


def _measure_pair(pair: Pair, sizes: Sequence[int], rounds: int, progress: Progress) -> list[dict[str, Any]]:
    moved: list[Moved] = []
    bare = BareCopies(pair.requests)
    try:
        with tempfile.TemporaryDirectory(prefix="polymux-bench-") as folder:
            trace = Path(folder) / "trace.json"
            with BenchServer(pair.requests, "--trace", str(trace)) as server:
                for nbytes in sizes:
                    progress(f"{nbytes // MIB} MiB between {pair.names[0]} and {pair.names[1]}")
                    bare_ms = bare.measure(nbytes, rounds)
                    for written in (True, False):
                        queue = _move(server.socket, nbytes, rounds, written)
                        moved.append(Moved(pair, queue, nbytes, written, bare_ms))
            timeline = Timeline(json.loads(trace.read_text())["traceEvents"])
    finally:
        bare.close()
    return [result for item in moved for result in _results(item, timeline)]


def _move(socket: str, nbytes: int, rounds: int, written: bool) -> str:
    """Move a queue to and fro while it is kept full of tasks, and check what they computed; returns its id."""
    words = nbytes // 8
    connection = polymux.connect(socket, name="bench", segment_nbytes=nbytes + 64 * MIB, start=False)
    with connection as client, client.queue(capacity=AHEAD) as queue:
        first, second = client.devices
        state = queue.empty((words,), "u8")
        content = np.arange(words, dtype=np.uint64)
        state.numpy()[:] = content
        target = state if written else queue.zeros((2,), "u8")
        with _Feeder(queue, state, target) as feeder:
            for _ in range(WARM_UPS + rounds):
                for device in (second, first):
                    client.request("migrate", {"queue": queue.id, "device": device})
                    feeder.wait_for(BETWEEN)
        queue.synchronize(TIMEOUT_S)
        if written:
            content[[0, -1]] += np.uint64(feeder.count)
        _check(client, queue, state.numpy(), content)
        return queue.id


def _check(client: Client, queue: Queue, found: Any, expected: Any) -> None:
    if not np.array_equal(found, expected):
        wrong = int(np.flatnonzero(found != expected)[0])
        raise PolymuxError(
            f"queue {queue.id} of {client.session}: word {wrong} is {found[wrong]}, not {expected[wrong]}"
        )


class _Feeder:
    """Keeps a queue full of tasks from a thread as long as the ``with`` block lasts."""

    def __init__(self, queue: Queue, state: Any, target: Any) -> None:
        self.count = 0
        self._queue = queue
        self._operands = [state], [target]
        self._stopped = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="bench-feeder", daemon=True)

    def __enter__(self) -> _Feeder:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped = True
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def wait_for(self, tasks: int) -> None:
        """Wait until so many more tasks have ended."""
        ended, deadline = self._ended() + tasks, monotonic() + TIMEOUT_S
        while self._ended() < ended:
            if self._failure is not None or monotonic() > deadline:
                raise PolymuxError("the queue's tasks do not go on") from self._failure
            sleep(0.0005)

    def _ended(self) -> int:
        return self._queue.submitted - self._queue.in_flight

    def _run(self) -> None:
        inputs, outputs = self._operands
        try:
            while not self._stopped:
                self._queue.submit(KERNEL, inputs, outputs, turns=TURNS)
                self.count += 1
        except BaseException as error:
            self._failure = error


class Timeline:
    """What the server's trace says about the tasks and copies of queues.

    Parameters
    ----------
    events : list of dict
        Of the Chrome trace format.
    """

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._tasks: dict[str, list[tuple[float, int]]] = {}
        self._copies: dict[str, list[tuple[float, int]]] = {}
        for event in events:
            if event.get("ph") != "X" or event.get("cat") not in ("task", "transfer"):
                continue
            queue, end_us = event["args"]["queue"], event["ts"] + event["dur"]
            if event["cat"] == "transfer":
                self._copies.setdefault(queue, []).append((end_us, event["args"]["nbytes"]))
            elif event["name"] == KERNEL:
                self._tasks.setdefault(queue, []).append((end_us, event["pid"]))
        for series in (*self._tasks.values(), *self._copies.values()):
            series.sort()

    def moves(self, queue: str, to: int) -> list[tuple[float, float, int]]:
        """Tell of each move of a queue to the first (0) or second (1) device what it cost.

        Returns
        -------
        list of tuple
            The gap and the usual time of a task before it, in milliseconds, and the bytes copied in it.
        """
        tasks = self._tasks[queue]
        wanted = sorted({device for _, device in tasks})[to]
        usual = self._usual_us(tasks)
        found = []
        for (end, device), (next_end, next_device) in pairwise(tasks):
            if device != next_device == wanted:
                nbytes = sum(size for at, size in self._copies.get(queue, ()) if end < at <= next_end)
                gap_us = next_end - end - usual[next_device]
                found.append((gap_us / 1e3, usual[device] / 1e3, nbytes))
        return found

    @staticmethod
    def _usual_us(tasks: list[tuple[float, int]]) -> dict[int, float]:
        """Median time from the end of one task to the end of the next one on each device."""
        steps: dict[int, list[float]] = {}
        for (end, device), (next_end, next_device) in pairwise(tasks):
            if device == next_device:
                steps.setdefault(device, []).append(next_end - end)
        return {device: median(series) for device, series in steps.items()}


def _results(moved: Moved, timeline: Timeline) -> list[dict[str, Any]]:
    """Describe the moves each way."""
    results = []
    for to in (1, 0):
        series = timeline.moves(moved.queue, to)[WARM_UPS:]
        gap_ms, task_ms, nbytes = (median(move[part] for move in series) for part in range(3))
        bare_ms = moved.bare_ms[to]
        results.append(
            {
                "nbytes": moved.nbytes,
                "gap_ms": gap_ms,
                "bare_copy_ms": bare_ms,
                "ratio": gap_ms / bare_ms,
                "from": moved.pair.names[1 - to],
                "to": moved.pair.names[to],
                "data": "written" if moved.written else "read",
                "moved_nbytes": int(nbytes),
                "task_ms": task_ms,
                "largest_gap_ms": max(move[0] for move in series),
            }
        )
    return results


def _row(item: dict[str, Any]) -> Row:
    met = item["gap_ms"] <= FACTOR * item["bare_copy_ms"] + item["task_ms"]
    metric = f"{item['from']} -> {item['to']}, {item['nbytes'] // MIB} MiB {item['data']}"
    target = f"<= {FACTOR} x + {item['task_ms']:.2g} ms"
    return Row(metric, item["gap_ms"], "ms", item["bare_copy_ms"], "copy", target, met)
