"""A queue whose device lacks a kernel gets help from one that has it, and goes home when that pays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.client import Client, Queue
from polymux.core.errors import NoDevice
from tests.segment.server_process import ServerProcess

pytest.importorskip("pyopencl")
KERNELS = Path(__file__).with_name("kernels_of_operator.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    devices = ("--device", "cpu", "--device", "opencl:0")
    with ServerProcess(tmp_path_factory.mktemp("server"), *devices, "--kernels", str(KERNELS)) as made:
        yield made


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with server.connect() as made:
        yield made


def at_home(client: Client) -> Queue:
    queue = client.queue()
    client.request("migrate", {"queue": queue.id, "device": "opencl:0"})
    return queue


def state(server: ServerProcess, queue: Queue) -> dict[str, Any]:
    return next(item for item in server.status()["queues"] if item["id"] == queue.id)


def test_a_missing_kernel_moves_the_queue_to_a_device_that_has_it(
    client: Client, server: ServerProcess
) -> None:
    queue = at_home(client)
    x, y = queue.array(np.arange(100.0)), queue.zeros(100, "f8")
    queue.submit("saxpy", [x, x], [y], a=1.0).wait(60)
    queue.submit("double", [y], [y]).wait(20)
    assert (y.numpy() == 4 * np.arange(100.0)).all()
    moved = state(server, queue)
    assert (moved["device"], moved["home"]) == ("cpu:0", "opencl:0")


def test_the_queue_goes_home_when_tasks_come_that_home_can_run(client: Client, server: ServerProcess) -> None:
    """With a kernel that has never run at home, so that nothing is known against it."""
    queue = at_home(client)
    x, y = queue.array(np.arange(100.0).reshape(10, 10)), queue.zeros((10, 10), "f8")
    queue.submit("double", [x], [x]).wait(20)
    assert state(server, queue)["device"] == "cpu:0"
    for _ in range(50):
        queue.submit("transpose", [x], [y])
    queue.synchronize(60)
    back = state(server, queue)
    assert (back["device"], back["home"]) == ("opencl:0", None)
    assert (y.numpy() == 2 * np.arange(100.0).reshape(10, 10).T).all()


def test_a_chain_that_alternates_between_both_is_right(client: Client) -> None:
    queue = at_home(client)
    x = queue.array(np.ones(1000))
    one = queue.array(np.ones(1000))
    expected = 1.0
    for _ in range(25):
        queue.submit("double", [x], [x])
        queue.submit("saxpy", [one, x], [x], a=1.0)
        expected = 2 * expected + 1
    queue.synchronize(60)
    assert (x.numpy() == expected).all()


def test_a_pinned_queue_is_not_helped_but_told(client: Client) -> None:
    queue = client.queue(device="opencl:0")
    x = queue.zeros(4, "f8")
    error = queue.submit("double", [x], [x]).error(20)
    assert isinstance(error, NoDevice)
    assert "to which the queue is pinned" in str(error)
    queue.submit("saxpy", [x, x], [x], a=1.0).wait(60)


def test_a_kernel_that_an_application_brings_for_one_api_finds_its_device(
    client: Client, server: ServerProcess
) -> None:
    from polymux.core.implementation import PythonFunction
    from polymux.core.kernel_spec import BufferParam, KernelSpec

    def triple(x: Any, y: Any) -> None:
        y[...] = 3 * x

    client.register(KernelSpec("triple", (BufferParam("x"),), (BufferParam("y"),)), PythonFunction(triple))
    queue = at_home(client)
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    queue.submit("triple", [x], [y]).wait(30)
    assert y.numpy().tolist() == [3.0] * 4
    assert state(server, queue)["device"] == "cpu:0"
