"""Simulated devices that fail as they were told, in a server of its own: nothing is lost, wrong or hangs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from polymux.client import Buffer, Client, Queue
from polymux.core.errors import DeviceFailed
from tests.segment.server_process import ServerProcess

TIMEOUT_S = 60.0


@contextmanager
def faulty(folder: Path, faults: str) -> Iterator[tuple[ServerProcess, Client]]:
    """Run a cpu and a simulated device with some faults."""
    path = folder / "faulty.toml"
    path.write_text(f'memory_nbytes = "1MiB"\n[compute]\nlatency_ns = 20000\n[faults]\n{faults}\n')
    with ServerProcess(folder, "--device", "cpu", "--device", f"simulated={path}") as server:
        with server.connect() as client:
            yield server, client


def on_it(client: Client) -> Queue:
    queue = client.queue()
    client.request("migrate", {"queue": queue.id, "device": "simulated:0"})
    return queue


def content_or_error(queue: Queue, buffer: Buffer) -> npt.NDArray[Any] | DeviceFailed:
    try:
        return queue.read(buffer).result(TIMEOUT_S)
    except DeviceFailed as error:
        return error


def lost(server: ServerProcess) -> str | None:
    device = next(item for item in server.status()["devices"] if item["id"] == "simulated:0")
    return device["lost"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("after", [0, 1, 7, 40])
def test_chains_of_idempotent_tasks_come_out_right_though_the_device_fails_in_the_middle(
    tmp_path: Path, after: int
) -> None:
    with faulty(tmp_path, f"launches_after = {after}") as (server, client):
        queues = [on_it(client) for _ in range(3)]
        chains = [[queue.array(np.full(1000, i, "f8")) for i in range(20)] for queue in queues]
        for queue, chain in zip(queues, chains, strict=True):
            for x, y in pairwise(chain):
                queue.submit("copy", [x], [y])
        for queue, chain in zip(queues, chains, strict=True):
            queue.synchronize(TIMEOUT_S)
            assert (chain[-1].numpy() == 0).all()
        assert "it failed 3 times in a row" in (lost(server) or "")


def test_tasks_in_place_are_told_as_failed_and_those_that_are_not_have_run_once(tmp_path: Path) -> None:
    with faulty(tmp_path, "launches_after = 10") as (_, client):
        queue = on_it(client)
        x, y = queue.array(np.ones(1000)), queue.zeros(1000, "f8")
        tasks = [queue.submit("saxpy", [x, y], [y], a=1.0) for _ in range(60)]
        failed = [isinstance(task.error(TIMEOUT_S), DeviceFailed) for task in tasks]
        assert 3 <= sum(failed) <= 8 + 3, "those that had started when it was lost, at most"
        assert (y.numpy() == 60 - sum(failed)).all()


def test_a_fault_that_passes_costs_no_idempotent_task(tmp_path: Path) -> None:
    with faulty(tmp_path, "launches_after = 5\nlaunches = 2") as (server, client):
        queue = on_it(client)
        x, y = queue.array(np.arange(1000.0)), queue.zeros(1000, "f8")
        for _ in range(20):
            queue.submit("copy", [x], [y])
        queue.synchronize(TIMEOUT_S)
        assert (y.numpy() == np.arange(1000.0)).all()
        assert lost(server) is None


def test_a_kernel_that_the_device_cannot_run_is_run_elsewhere(tmp_path: Path) -> None:
    with faulty(tmp_path, 'launches_after = 0\nkernel = "transpose"') as (_, client):
        queue = on_it(client)
        x, y = queue.array(np.arange(100.0).reshape(10, 10)), queue.zeros((10, 10), "f8")
        queue.submit("copy", [x], [y]).wait(TIMEOUT_S)
        queue.submit("transpose", [x], [y]).wait(TIMEOUT_S)
        assert (y.numpy() == np.arange(100.0).reshape(10, 10).T).all()


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_bus_that_fails_gives_right_data_or_an_error_and_never_wrong_ones(
    tmp_path: Path, after: int
) -> None:
    with faulty(tmp_path, f"copies_after = {after}") as (_, client):
        queue = on_it(client)
        x, y = queue.array(np.ones(1000)), queue.zeros(1000, "f8")
        errors = [queue.submit("saxpy", [x, y], [y], a=1.0).error(TIMEOUT_S) for _ in range(10)]
        ran = sum(error is None for error in errors)
        found = content_or_error(queue, y)
        if isinstance(found, DeviceFailed):
            assert "write it anew" in str(found)
        else:
            assert (found == ran).all()
        queue.write(y, np.full(1000, 7.0)).wait(TIMEOUT_S)
        queue.submit("saxpy", [x, y], [y], a=1.0).wait(TIMEOUT_S)
        assert (queue.read(y).result(TIMEOUT_S) == 8.0).all()


def test_memory_that_is_refused_in_the_middle_fails_no_task(tmp_path: Path) -> None:
    with faulty(tmp_path, "allocation = 3") as (server, client):
        queue = on_it(client)
        arrays = [queue.array(np.full(1000, i, "f8")) for i in range(6)]
        out = queue.zeros(1000, "f8")
        for array in arrays:
            queue.submit("saxpy", [array, out], [out], a=1.0)
        queue.synchronize(TIMEOUT_S)
        assert (out.numpy() == 15).all()
        assert lost(server) is None


def test_a_launch_that_hangs_for_a_time_holds_up_its_own_stream_only(tmp_path: Path) -> None:
    with faulty(tmp_path, "hang_launch = 2\nhang_ns = 1000000000") as (_, client):
        slow, quick = on_it(client), client.queue(device="cpu:0")
        x, y = slow.array(np.ones(10)), slow.zeros(10, "f8")
        a, b = quick.array(np.ones(10)), quick.zeros(10, "f8")
        hanging = [slow.submit("saxpy", [x, y], [y], a=1.0) for _ in range(3)]
        for _ in range(100):
            quick.submit("saxpy", [a, b], [b], a=1.0)
        quick.synchronize(TIMEOUT_S)
        assert not hanging[-1].done()
        slow.synchronize(TIMEOUT_S)
        assert y.numpy().tolist() == [3.0] * 10
