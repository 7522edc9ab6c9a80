"""Kernels of different applications run at the same time on one device, each on its share of the units."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.client import Client
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.device.cores import allowed_cores
from tests.segment.server_process import ServerProcess

TASKS = 60
DIVIDED = {"cpu:0": "cpu,shares=1+1", "opencl:0": "opencl:0,shares=1+1"}
several = pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores")


def spans(trace: Path) -> dict[str, list[tuple[float, float]]]:
    """Start and end of every task, by queue."""
    found: dict[str, list[tuple[float, float]]] = {}
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("cat") == "task" and event["ph"] == "X":
            span = (event["ts"], event["ts"] + event["dur"])
            found.setdefault(event["args"]["queue"], []).append(span)
    return found


def overlaps(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> int:
    """Pairs of tasks that ran at the same time; the timeline's microseconds are rounded."""
    ns = 1e-3
    return sum(a + ns < d and c + ns < b for a, b in one for c, d in other)


def run_two_applications(folder: Path, device: str, request: str) -> tuple[Any, Any]:
    """Let two applications work on one device; the spans of the tasks of each."""
    trace = folder / "trace.json"
    with ServerProcess(folder, "--device", request, "--trace", str(trace)) as server:
        clients = [server.connect(), server.connect()]
        work = []
        for client in clients:
            queue = client.queue(device=device)
            x, y = queue.array(np.ones((512, 512), "f4")), queue.zeros((512, 512), "f4")
            queue.submit("copy", [x], [y]).wait(60)
            work.append((queue, x, y))
        for _ in range(TASKS):
            for queue, x, y in work:
                queue.submit("gemm", [x, x], [y])
        for queue, _, y in work:
            assert (queue.read(y).result(120)[:3, :3] > 0).all()
        for client in clients:
            client.close()
    one, other = list(spans(trace).values())
    assert len(one) == len(other) >= TASKS
    return one, other


@several
@pytest.mark.parametrize("device", DIVIDED)
def test_two_applications_run_at_the_same_time_on_the_shares_of_one_device(
    tmp_path: Path, device: str
) -> None:
    if device.startswith("opencl"):
        pytest.importorskip("pyopencl")
    assert overlaps(*run_two_applications(tmp_path, device, DIVIDED[device])) >= TASKS // 2


@pytest.mark.parametrize("device", DIVIDED)
def test_they_take_turns_where_there_is_one_stream(tmp_path: Path, device: str) -> None:
    if device.startswith("opencl"):
        pytest.importorskip("pyopencl")
    request = f"{device.partition(':')[0]}{':0' if device.startswith('opencl') else ''},streams=1"
    assert overlaps(*run_two_applications(tmp_path, device, request)) == 0


@pytest.fixture
def divided(tmp_path: Path) -> Iterator[Client]:
    with ServerProcess(tmp_path, "--device", "cpu,shares=1+1") as server, server.connect() as client:
        yield client


def cores(where: Any) -> None:
    """Mark the cores on which the caller may run."""
    where[sorted(os.sched_getaffinity(0))] = 1


@several
def test_every_stream_keeps_to_its_cores_in_the_server_and_in_worker_processes(divided: Client) -> None:
    spec = KernelSpec("cores", outputs=(BufferParam("where"),))
    divided.register(spec, PythonFunction(cores))
    seen = []
    for _ in range(2):  # round robin: a queue on each stream
        queue = divided.queue()
        where = queue.zeros(max(allowed_cores()) + 1, "i4")
        queue.submit("cores", [], [where]).wait(60)
        seen.append([int(core) for core in np.flatnonzero(where.numpy())])
    assert sorted(chain(*seen)) == list(allowed_cores()[:2])
    assert [len(found) for found in seen] == [1, 1]
