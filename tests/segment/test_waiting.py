"""Waiting by many threads, many times, behind full queues: nobody spins, holds up others, or is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from polymux.client import Client, Task
from polymux.core.errors import KernelFailed, QueueFull
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    devices = ("--device", "cpu", "--device", "cpu:0,memory_nbytes=4MiB,streams=1")
    with ServerProcess(tmp_path_factory.mktemp("server"), *devices, "--kernels", str(KERNELS)) as made:
        yield made


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with server.connect() as made:
        yield made


def in_threads(*functions: Callable[[], object]) -> list[object]:
    """Call functions side by side; what they returned or raised."""
    outcomes: list[object] = ["it still waits"] * len(functions)

    def call(at: int) -> None:
        try:
            outcomes[at] = functions[at]()
        except Exception as error:
            outcomes[at] = error

    threads = [threading.Thread(target=call, args=(at,), daemon=True) for at in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes


def test_many_threads_wait_for_one_task_again_and_again(client: Client) -> None:
    queue = client.queue()
    x, y = queue.zeros(4, "f8"), queue.zeros(4, "f8")
    for _ in range(5):
        task = queue.submit("sleep", [x], [y], seconds=0.05)
        waits: list[Callable[[], object]] = [task.wait, task.result, task.error, y.wait, queue.synchronize]
        assert "it still waits" not in in_threads(*waits, *waits, lambda: asyncio.run(awaited(task)))  # noqa: B023
        for wait in (*waits, *waits):
            wait()


def test_many_threads_hear_of_one_failure_again_and_again(client: Client) -> None:
    queue = client.queue()
    x, y = queue.zeros(4, "f8"), queue.zeros(4, "f8")
    queue.submit("sleep", [x], [y], seconds=0.05)
    task = queue.submit("raise", [x], [y])
    for _ in range(3):
        outcomes = in_threads(*[task.wait] * 8, lambda: asyncio.run(awaited(task)))
        assert all(isinstance(outcome, KernelFailed) for outcome in outcomes)


async def awaited(task: Task) -> None:
    await asyncio.gather(*(again(task) for _ in range(3)))


async def again(task: Task) -> None:
    await task


def test_who_awaits_a_short_task_is_not_kept_by_who_awaits_a_long_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymux.client.awaiting._ALIVE_CHECK_NS", 3_600_000_000_000)
    ended: list[str] = []

    async def run(name: str, device: str, seconds: float, times: int) -> None:
        with client.queue(device=device) as queue:
            x, y = queue.zeros(4, "f8"), queue.zeros(4, "f8")
            for _ in range(times):
                await queue.submit("sleep", [x], [y], seconds=seconds)
                ended.append(name)

    async def both() -> None:
        long = asyncio.create_task(run("long", "cpu:0", 4.0, 1))
        await asyncio.sleep(0.2)  # its waiter sleeps
        await run("short", "cpu:1", 0.01, 5)
        await long

    asyncio.run(both())
    assert ended == ["short"] * 5 + ["long"]


def test_threads_that_wait_for_different_tasks_of_one_queue_are_all_woken(client: Client) -> None:
    queue = client.queue()
    x, y = queue.zeros(4, "f8"), queue.zeros(4, "f8")
    tasks = [queue.submit("sleep", [x], [y], seconds=0.002) for _ in range(100)]
    waits = [task.wait for task in tasks]
    assert in_threads(*waits[::-1]) == [None] * 100


def test_a_time_out_of_one_thread_does_not_disturb_the_others(client: Client) -> None:
    queue = client.queue()
    x, y = queue.zeros(4, "f8"), queue.zeros(4, "f8")
    task = queue.submit("sleep", [x], [y], seconds=0.5)
    impatient = [lambda seconds=0.01 * n: task.wait(seconds) for n in range(1, 9)]
    outcomes = in_threads(*impatient, *[task.wait] * 4)
    assert all(isinstance(outcome, TimeoutError) for outcome in outcomes[:8])
    assert outcomes[8:] == [None] * 4


class Blocked:
    """A thread that submits to a full queue, and the processor time that it takes meanwhile."""

    def __init__(self, client: Client, device: str, tasks: int) -> None:
        self.queue = client.queue(capacity=16, device=device)
        self.x, self.y = self.queue.zeros(4, "f8"), self.queue.zeros(4, "f8")
        self.total = self.queue.zeros(4, "f8")
        self.submitted = 0
        self._tasks = tasks
        self._clock = 0
        self._ready = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self._ready.wait(30)

    def cpu_s(self) -> float:
        """Processor time of the thread, in seconds."""
        return time.clock_gettime(self._clock)

    def _run(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._ready.set()
        self.queue.submit("sleep", [self.x], [self.y], seconds=1.5)
        for _ in range(self._tasks):
            self.queue.submit("add_ones", [self.total], [self.total])
            self.submitted += 1
        self.queue.synchronize()


@pytest.mark.parametrize("device", ["cpu:0", "cpu:1"])
def test_a_full_queue_makes_its_submitter_sleep_and_nobody_else_wait(client: Client, device: str) -> None:
    blocked = Blocked(client, device, 200)
    until(lambda: blocked.submitted == 15, 30)  # and the one that sleeps
    time.sleep(0.1)
    before_s = blocked.cpu_s()
    free = "cpu:1" if device == "cpu:0" else "cpu:0"
    rounds = 0
    while blocked.submitted == 15:  # the whole of the library goes on meanwhile, with the same connection
        with client.queue(device=free) as queue:
            a, b = queue.array(np.arange(9.0)), queue.zeros(9, "f8")
            queue.submit("double", [a], [b]).wait(30)
            assert (b.numpy() == 2 * np.arange(9.0)).all()
        client.request("status")
        with pytest.raises(QueueFull):
            full(client, free)
        rounds += 1
        spent_s = blocked.cpu_s() - before_s if blocked.submitted == 15 else 0.0
        assert spent_s < 0.5, "it spins"
    assert rounds > 1
    blocked.thread.join(60)
    assert not blocked.thread.is_alive()
    assert blocked.total.numpy().tolist() == [200.0] * 4


def full(client: Client, device: str) -> None:
    """Fill another queue, which says so at once."""
    with client.queue(capacity=16, on_full="raise", device=device) as queue:
        x, y = queue.zeros(4, "f8"), queue.zeros(4, "f8")
        queue.submit("sleep", [x], [y], seconds=0.05)
        while True:
            queue.submit("double", [x], [y])
