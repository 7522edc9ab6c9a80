"""The memory that the server counts is the sum of the buffers that are there, at every moment, whatever clients do."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.client import Buffer, Client
from polymux.core.errors import OutOfDeviceMemory
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
CAPACITIES = {"cpu:1": 256 << 10, "cpu:2": 100 << 10, "opencl:0": 300 << 10}
STEPS = 4000
ALLOCATIONS = 30_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    pytest.importorskip("pyopencl")
    words = ["--device", "cpu", "--kernels", str(KERNELS)]
    for request, name in (("cpu:0", "cpu:1"), ("cpu:1", "cpu:2"), ("opencl:0", "opencl:0")):
        words += ["--device", f"{request},memory_nbytes={CAPACITIES[name]}"]
    with ServerProcess(tmp_path_factory.mktemp("server"), *words) as made:
        yield made


def used(state: dict[str, Any]) -> dict[str, int]:
    return {device["id"]: device["used_nbytes"] for device in state["devices"]}


class Application:
    """Allocates, computes on, moves and frees buffers at random; some do not fit anywhere."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.client = server.connect(f"app{seed}")
        self._rng = random.Random(seed)
        self._queues = [self.client.queue(device=device) for device in self.client.devices]
        self.live: list[tuple[Buffer, float]] = []
        self.refused = 0
        self.wrong: list[str] = []

    def step(self) -> None:
        rng = self._rng
        choice = rng.random()
        if choice < 0.4 or not self.live:
            count = rng.randint(1, 8000)
            self.live.append((rng.choice(self._queues).array(np.full(count, 1.0)), 1.0))
        elif choice < 0.75:
            at = rng.randrange(len(self.live))
            buffer, value = self.live[at]
            task = rng.choice(self._queues).submit("saxpy", [buffer, buffer], [buffer], a=1.0)
            task.wait(60)
            self.live[at] = (buffer, 2 * value)
        elif choice < 0.8:
            buffer, value = rng.choice(self.live)
            if not (buffer.numpy(60) == value).all():
                self.wrong.append(f"{buffer} is not {value}")
        elif choice < 0.85:
            large = rng.choice(self._queues[1:]).zeros(100_000, "f8")
            error = self._queues[2].submit("copy", [large], [large]).error(60)
            self.refused += isinstance(error, OutOfDeviceMemory)
            large.close()
        if len(self.live) > 25 or choice > 0.9:
            self.live.pop(rng.randrange(len(self.live)))[0].close()


def test_the_memory_in_use_is_the_sum_of_the_live_buffers_at_every_moment(server: ServerProcess) -> None:
    applications = [Application(server, seed) for seed in range(2)]
    failures: list[BaseException] = []

    def work(application: Application) -> None:
        try:
            for _ in range(STEPS):
                application.step()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(application,)) for application in applications]
    for thread in threads:
        thread.start()
    most = dict.fromkeys(CAPACITIES, 0)
    while any(thread.is_alive() for thread in threads):
        state = server.status()
        now = used(state)
        assert sum(now.values()) == sum(item["device_nbytes"] for item in state["applications"])
        for device, capacity in CAPACITIES.items():
            assert 0 <= now[device] <= capacity
            most[device] = max(most[device], now[device])
    assert failures == []
    assert min(most.values()) > 0
    check_at_rest(server, applications)


def check_at_rest(server: ServerProcess, applications: list[Application]) -> None:
    """Compare with what the clients know of their own buffers, and see it all given back."""
    for application in applications:
        assert application.wrong == []
        assert application.refused > 10
    away = sum(rounded(buffer) for item in applications for buffer, _ in item.live if buffer.away)
    until(lambda: sum(used(server.status()).values()) == away)
    assert away > 0
    for buffer, value in applications[0].live:
        assert (buffer.numpy(60) == value).all()
        buffer.close()
    left = sum(rounded(buffer) for buffer, _ in applications[1].live if buffer.away)
    until(lambda: sum(used(server.status()).values()) == left)
    for application in applications:
        application.client.close()
    until(lambda: not any(used(server.status()).values()))


def rounded(buffer: Buffer) -> int:
    """Bytes that a buffer takes: what the segment's allocator gave it."""
    unit = 64 if buffer.nbytes <= 64 << 10 else 4096
    return -(-buffer.nbytes // unit) * unit


def test_many_allocations_and_releases_leave_no_false_out_of_memory(server: ServerProcess) -> None:
    """A counter that drifts would refuse, or go below zero, long before."""
    with server.connect() as client:
        exercise(client)
        fits = client.queue(device="cpu:1")
        whole = fits.zeros(CAPACITIES["cpu:1"], "u1")
        fits.submit("copy", [whole], [whole]).wait(60)
        assert used(server.status())["cpu:1"] == CAPACITIES["cpu:1"]
        whole.close()
        until(lambda: used(server.status())["cpu:1"] == 0)


def exercise(client: Client) -> None:
    queue = client.queue(device="cpu:1")
    rng = random.Random(5)
    for _ in range(ALLOCATIONS // 2):
        a, b = queue.empty(rng.randint(1, 20_000), "u1"), queue.empty(64, "u1")
        queue.submit("noop", [a, b])
