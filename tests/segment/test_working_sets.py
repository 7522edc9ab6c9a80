"""Native tasks on a cpu with memory of its own: while their buffers stay they run without Python."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from polymux.client import Client
from polymux.server.config import RuntimeOptions
from polymux.server.runtime import Runtime

TIMEOUT_S = 30.0
COUNT = 4096


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(RuntimeOptions(devices=("cpu:0,streams=1", "cpu:1,streams=1,memory_nbytes=1MiB"))) as made:
        yield made


@pytest.fixture
def client(runtime: Runtime) -> Iterator[Client]:
    with Client(fd=runtime.connect_pair().detach(), segment_nbytes=64 << 20) as made:
        yield made


def native_tasks(runtime: Runtime) -> list[int]:
    return [accelerator.worker.stats()["native_tasks"] for accelerator in runtime.parts.accelerators]


def test_tasks_that_take_turns_with_their_buffers_run_without_python(
    client: Client, runtime: Runtime
) -> None:
    queue = client.queue(device="cpu:0")
    x, y = queue.array(np.ones(COUNT)), queue.zeros(COUNT, "f8")
    for _ in range(500):
        queue.submit("saxpy", [x, y], [y], a=1.0)
        queue.submit("saxpy", [y, x], [x], a=0.0)
    queue.synchronize(TIMEOUT_S)
    assert native_tasks(runtime)[0] > 500
    assert (y.numpy(TIMEOUT_S) == 500).all()
    assert (x.numpy(TIMEOUT_S) == 1).all()


def test_what_the_client_reads_and_writes_in_between_is_seen(client: Client) -> None:
    queue = client.queue(device="cpu:0")
    x, y = queue.array(np.ones(COUNT)), queue.zeros(COUNT, "f8")
    expected = 0.0
    for round_ in range(20):
        x.numpy(TIMEOUT_S)[:] = round_
        for _ in range(30):
            queue.submit("saxpy", [x, y], [y], a=1.0)
        expected += 30 * round_
        assert (y.numpy(TIMEOUT_S) == expected).all()


def test_a_buffer_that_took_the_place_of_a_freed_one_is_not_taken_for_it(client: Client) -> None:
    queue = client.queue(device="cpu:0")
    y = queue.zeros(COUNT, "f8")
    for round_ in range(30):
        x = queue.array(np.full(COUNT, float(round_)))
        for _ in range(10):
            queue.submit("saxpy", [x, y], [y], a=1.0)
        queue.synchronize(TIMEOUT_S)
        x.close()
    assert (y.numpy(TIMEOUT_S) == 10 * sum(range(30))).all()


def test_queues_on_two_devices_that_use_one_buffer_both_get_it(client: Client) -> None:
    one, other = client.queue(device="cpu:0"), client.queue(device="cpu:1")
    shared = one.array(np.full(COUNT, 2.0))
    mine, theirs = one.zeros(COUNT, "f8"), other.zeros(COUNT, "f8")
    for _ in range(300):
        one.submit("saxpy", [shared, mine], [mine], a=1.0)
        other.submit("saxpy", [shared, theirs], [theirs], a=1.0)
    for queue in (one, other):
        queue.synchronize(TIMEOUT_S)
    assert (mine.numpy(TIMEOUT_S) == 600).all()
    assert (theirs.numpy(TIMEOUT_S) == 600).all()


def test_queues_of_one_stream_keep_a_working_set_each(client: Client, runtime: Runtime) -> None:
    queues = [client.queue(device="cpu:0") for _ in range(4)]
    pairs = [(queue.array(np.ones(COUNT)), queue.zeros(COUNT, "f8")) for queue in queues]
    for _ in range(300):
        for queue, (x, y) in zip(queues, pairs, strict=True):
            queue.submit("saxpy", [x, y], [y], a=1.0)
    for queue, (_, y) in zip(queues, pairs, strict=True):
        queue.synchronize(TIMEOUT_S)
        assert (y.numpy(TIMEOUT_S) == 300).all()
    assert native_tasks(runtime)[0] > 300


def test_a_working_set_that_does_not_fit_the_device_costs_no_task(client: Client) -> None:
    queue = client.queue(device="cpu:1")
    buffers = [queue.zeros(40_000, "f8") for _ in range(6)]  # 320 kB each; three fit
    one = queue.array(np.ones(40_000))
    for _ in range(10):
        for buffer in buffers:
            queue.submit("saxpy", [one, buffer], [buffer], a=1.0)
    queue.synchronize(TIMEOUT_S)
    for buffer in buffers:
        assert (buffer.numpy(TIMEOUT_S) == 10).all()


def test_a_queue_that_is_closed_or_moved_leaves_nothing_held(client: Client, runtime: Runtime) -> None:
    for number in range(10):
        queue = client.queue()
        x, y = queue.array(np.ones(COUNT)), queue.zeros(COUNT, "f8")
        for step in range(60):
            queue.submit("saxpy", [x, y], [y], a=1.0, device=f"cpu:{step // 20 % 2}")
        if number % 2:
            assert (y.numpy(TIMEOUT_S) == 60).all()
        queue.close()
        x.close()
        y.close()
    other = client.queue(device="cpu:1")
    big = other.zeros(100_000, "f8")  # nearly all of the device: nothing else may be pinned there
    other.submit("saxpy", [big, big], [big], a=1.0).wait(TIMEOUT_S)
