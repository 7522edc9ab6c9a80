"""Training with a helper accelerator: every convolution migrates, against the same training on one device."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import polymux
from polymux.apps.digits import Digits, load_digits
from polymux.apps.lane import QueueLane
from polymux.apps.lenet import Placement
from polymux.apps.training import Schedule, Training
from polymux.bench.bench_server import BenchServer
from polymux.bench.cores import pinned_to
from polymux.bench.effort import MIB, Effort
from polymux.bench.report import Progress, Report, Row
from polymux.client import Client, Queue
from polymux.core.errors import PolymuxError

Memory = Literal["host", "own"]
MEMORIES: dict[Memory, str] = {"host": "shared memory", "own": "own memories"}
BATCH = 64
SETTINGS = ((BATCH, 1), (BATCH, 2), (16, 1), (256, 1))
"""Batch and task queues that share it; the first is what the target is for."""
EPOCHS = 40
"""Of one training; then the next one begins with another seed."""
SWEEP = 20
"""The other settings are measured with so many times fewer migrations."""
TARGET = 1.06
ACCURATE = 0.95
PLACEMENT = Placement(main="cpu:0", unroll="cpu:1")
CAPACITY = 8192
"""More tasks than an epoch has, so that the application never waits for room."""
SEGMENT_NBYTES = 1024 * MIB


@dataclass(slots=True)
class _Measured:
    """What was found about one set-up: seconds of each epoch's steps, and what moved."""

    batch: int
    lanes: int
    what: str
    steps: int = 0
    migrations: int = 0
    migrating_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    @property
    def slowdown(self) -> float:
        return median(self.migrating_s) / median(self.alone_s)


def run(effort: Effort, progress: Progress) -> Report:
    """Train on two devices with a migration to and fro for each im2col and col2im, and on one; compare all losses."""
    training, test = load_digits()
    cores = sorted(os.sched_getaffinity(0))[:2]
    results, rows = [], []
    for memory, words in MEMORIES.items():
        # Two ways to write a core, so that a machine with one of them is asked for two devices nevertheless.
        names = (f"cpu:{cores[0]}-{cores[0]}", f"cpu:{cores[-1]}")
        devices = [f"{name},memory={memory},streams=1" for name in names]
        with BenchServer(devices) as server, pinned_to({cores[-1]} if len(cores) > 1 else set()):
            for setting in SETTINGS:
                judged = setting == SETTINGS[0]
                batch, lanes = setting
                what = f"{words}, batch {batch}" + (f" in {lanes} queues" if lanes > 1 else "")
                measured = _Measured(batch, lanes, what)
                wanted = effort.migrations // (len(MEMORIES) if judged else SWEEP)
                _measure(server.socket, training, test, measured, wanted, progress)
                results.append(_result(memory, measured))
                rows += _rows(measured, judged=judged)
    notes = [
        "LeNet (20 and 50 channels, 5 x 5) on scikit-learn's digits enlarged to 28 x 28; im2col and col2im on cpu:1,"
        " the rest on cpu:0: three times to and fro in a step",
        "baseline: the same training on cpu:0 alone, epochs taking turns; medians of the epochs' means",
        "every step's loss and, at the end of each training, every weight are the same bits with and without migration,"
        " and the server counts as many migrations as were asked for; else this ends with an error",
        f"cpu:0 is core {cores[0]}, cpu:1 and the application core {cores[-1]}",
    ]
    if len(cores) == 1:
        notes.append("one core for everything: the figures say little")
    return Report(
        "training", "a convolutional network with a helper accelerator", tuple(rows), results, tuple(notes)
    )


def _measure(
    socket: str, training: Digits, test: Digits, measured: _Measured, wanted: int, progress: Progress
) -> None:
    """Run trainings until `wanted` migrations were made."""
    seed = 0
    connection = polymux.connect(socket, name="training", segment_nbytes=SEGMENT_NBYTES, start=False)
    with connection as client:
        while measured.migrations < wanted:
            _train(client, measured, training, test, seed, wanted, progress)
            seed += 1


def _train(
    client: Client,
    measured: _Measured,
    training: Digits,
    test: Digits,
    seed: int,
    wanted: int,
    progress: Progress,
) -> None:
    """One training twice, epoch by epoch in turns."""
    schedule = Schedule(batch=measured.batch, seed=seed)
    with ExitStack() as stack:
        still = [
            stack.enter_context(client.queue(device=PLACEMENT.main, capacity=CAPACITY))
            for _ in range(measured.lanes)
        ]
        # The first one goes ahead of the others, so that they do not all wait for the helper at the same time.
        moving = [
            stack.enter_context(client.queue(priority=-lane, capacity=CAPACITY))
            for lane in range(measured.lanes)
        ]
        for queue in moving:
            queue.submit("noop", device=PLACEMENT.main).wait()
        alone = Training([QueueLane(queue) for queue in still], training, schedule)
        migrating = Training([QueueLane(queue) for queue in moving], training, schedule, PLACEMENT)
        first = _migrations(client, moving)
        for epoch in range(EPOCHS):
            if measured.migrations >= wanted:
                break
            before = migrating.migrations
            with _timed(measured.alone_s, alone.steps_per_epoch):
                expected = alone.epoch()
            with _timed(measured.migrating_s, alone.steps_per_epoch):
                found = migrating.epoch()
            if found.losses.tobytes() != expected.losses.tobytes():
                raise PolymuxError(
                    f"seed {seed}, epoch {epoch}: the losses with migrations differ from those without:"
                    f" {found.losses.tolist()}, expected {expected.losses.tolist()}"
                )
            measured.steps += alone.steps_per_epoch
            measured.migrations += migrating.migrations - before
            progress(
                f"{measured.what}: {measured.migrations:,} of {wanted:,} migrations, loss {found.loss:.4f},"
                f" {measured.slowdown:.3f} x the time on cpu:0 alone"
            )
        weights = migrating.weights()
        wrong = [
            name for name, array in alone.weights().items() if array.tobytes() != weights[name].tobytes()
        ]
        counted = _migrations(client, moving) - first
        if wrong or counted != migrating.migrations:
            raise PolymuxError(
                f"seed {seed}: {migrating.migrations} migrations were asked for, {counted} made; weights that"
                f" differ from those of the training without: {', '.join(wrong) or 'none'}"
            )
        measured.accuracies.append(migrating.accuracy(test))


def _migrations(client: Client, queues: Sequence[Queue]) -> int:
    """Ask the server how often it has moved some queues."""
    reply, _ = client.request("status")
    counted = {item["id"]: int(item["migrations"]) for item in json.loads(reply["json"])["queues"]}
    return sum(counted[queue.id] for queue in queues)


@contextmanager
def _timed(into: list[float], steps: int) -> Iterator[None]:
    """Append the seconds that each of the body's steps took."""
    start = time.perf_counter()
    yield
    into.append((time.perf_counter() - start) / steps)


def _result(memory: Memory, measured: _Measured) -> dict[str, Any]:
    step_s, alone_s = median(measured.migrating_s), median(measured.alone_s)
    per_step = measured.migrations / measured.steps
    return {
        "memory": memory,
        "batch": measured.batch,
        "queues": measured.lanes,
        "steps": measured.steps,
        "migrations": measured.migrations,
        "migrations_per_s": per_step / step_s,
        "step_ms": step_s * 1e3,
        "alone_step_ms": alone_s * 1e3,
        "slowdown": measured.slowdown,
        "migration_us": (step_s - alone_s) / per_step * 1e6,
        "accuracy": min(measured.accuracies),
    }


def _rows(measured: _Measured, *, judged: bool) -> list[Row]:
    result = _result("host", measured)
    met = measured.slowdown < TARGET if judged else None
    target = f"< {TARGET} x" if judged else ""
    rows = [
        Row(
            f"{measured.what}: a step", result["step_ms"], "ms", result["alone_step_ms"], "alone", target, met
        )
    ]
    rows.append(Row("  what a migration adds", result["migration_us"], "us"))
    rows.append(Row("  migrations a second", result["migrations_per_s"], "/s"))
    if judged:
        rows.append(Row("  migrations, none lost or wrong", measured.migrations, ""))
        enough = measured.steps < EPOCHS * 20 or result["accuracy"] > ACCURATE
        rows.append(
            Row("  accuracy after training", 100 * result["accuracy"], "%", None, "", "> 95 %", enough)
        )
    return rows
