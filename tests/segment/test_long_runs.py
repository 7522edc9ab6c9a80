"""What adds up over many tasks, transfers and failures: nothing, on either side."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polymux.client import Client
from polymux.core.errors import SegmentFull
from tests.segment.server_process import ServerProcess

GROWTH_NBYTES = 2 << 20
"""A leak of 32 bytes a task would be 16 times as much."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("server")
    with ServerProcess(folder, "--device", "cpu", "--device", "cpu:0,memory=own") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with server.connect() as made:
        yield made


def test_a_million_tasks_leave_the_server_as_large_as_it_was(server: ServerProcess, client: Client) -> None:
    with client.queue() as queue:
        for _ in range(100_000):
            queue.submit("noop")
        queue.synchronize(60)
        before = server.rss_nbytes()
        for _ in range(1_000_000):
            queue.submit("noop")
        queue.synchronize(60)
        assert server.rss_nbytes() - before < GROWTH_NBYTES


def test_failures_leave_nothing_behind(server: ServerProcess, client: Client) -> None:
    with client.queue() as queue:
        x, y = queue.zeros(4), queue.zeros(5)

        def fail(times: int) -> None:
            for _ in range(times):
                assert queue.submit("copy", [x], [y]).error(60) is not None

        fail(2_000)
        before = server.rss_nbytes()
        fail(10_000)
        assert server.rss_nbytes() - before < GROWTH_NBYTES


def test_queues_that_come_and_go_leave_nothing_behind(server: ServerProcess, client: Client) -> None:
    def come_and_go(times: int) -> None:
        for _ in range(times):
            with client.queue(capacity=16) as queue:
                queue.submit("noop")

    come_and_go(200)
    live_nbytes, before = client.memory()["live_nbytes"], server.rss_nbytes()
    come_and_go(1_000)
    assert client.memory()["live_nbytes"] == live_nbytes
    assert server.rss_nbytes() - before < GROWTH_NBYTES


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1"])
def test_thousands_of_small_transfers_arrive_each_with_its_own_content(client: Client, device: str) -> None:
    gc.collect()
    live_nbytes = client.memory()["live_nbytes"]
    with client.queue(device=device) as queue:
        buffer = queue.zeros(256, "i4")
        for start in range(0, 3_000, 100):
            reads = []
            for number in range(start, start + 100):
                queue.write(buffer, np.full(256, number, "i4"))
                reads.append((number, queue.read(buffer)))
            for number, read in reads:
                assert (read.result(60) == number).all()
        buffer.close()
        del reads, read
    gc.collect()
    client.queue(capacity=16).close()  # looks for what has become free
    assert client.memory()["live_nbytes"] == live_nbytes


def test_a_full_segment_is_its_own_clients_affair_and_room_comes_back(
    server: ServerProcess, client: Client
) -> None:
    with server.connect("neighbour") as neighbour, client.queue() as queue, neighbour.queue() as other:
        kept = []
        with pytest.raises(SegmentFull, match="in use"):
            while True:
                kept.append(queue.empty(1 << 20, "u1"))
        other.submit("noop").wait(20)
        assert (
            other.submit("copy", [other.array(np.arange(9.0))], [other.zeros(9, "f8")]).result(20)[0].numpy()
            == np.arange(9.0)
        ).all()
        kept.pop().close()
        queue.submit("fill", [], [queue.empty(1 << 18, "f4")], value=2.0).wait(20)
