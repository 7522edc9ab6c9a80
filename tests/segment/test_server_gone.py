"""The server is killed: whoever waits for it hears of it, in whatever way it waits, and nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polymux.client import Client, Queue, Task
from polymux.core.errors import NoServer, ServerGone
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
Wait = Callable[[Client, Queue, Task], object]


async def awaited(task: Task) -> None:
    await task


async def awaited_by_many(task: Task) -> None:
    outcomes = await asyncio.gather(*(awaited(task) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(outcome, ServerGone) for outcome in outcomes)
    raise ServerGone("all of them")


def fill(queue: Queue) -> None:
    while True:
        queue.submit("noop")


def close_and_open(client: Client, queue: Queue) -> None:
    client.request("status")
    queue.close()  # the server cannot let go of it: its task runs
    client.queue()


WAITS: dict[str, Wait] = {
    "task.wait()": lambda client, queue, task: task.wait(),
    "task.wait(timeout)": lambda client, queue, task: task.wait(500),
    "task.result()": lambda client, queue, task: task.result(),
    "task.error()": lambda client, queue, task: task.error(),
    "await task": lambda client, queue, task: asyncio.run(awaited(task)),
    "five times await task": lambda client, queue, task: asyncio.run(awaited_by_many(task)),
    "queue.synchronize()": lambda client, queue, task: queue.synchronize(),
    "queue.barrier().wait()": lambda client, queue, task: queue.barrier().wait(),
    "queue.read(...).result()": lambda client, queue, task: queue.read(task.outputs[0]).result(),
    "buffer.wait()": lambda client, queue, task: task.outputs[0].wait(),
    "buffer.numpy()": lambda client, queue, task: task.outputs[0].numpy(),
    "submit to a full queue": lambda client, queue, task: fill(queue),
    "a request": lambda client, queue, task: close_and_open(client, queue),
}


class Waiter:
    """A client with a task that runs for long, and a thread that waits for it."""

    def __init__(self, server: ServerProcess, wait: Wait) -> None:
        self.client = server.connect()
        self.queue = self.client.queue(capacity=16)
        self.input, self.output = self.queue.array(np.arange(5.0)), self.queue.zeros(5, "f8")
        self.view = self.input.numpy()
        task = self.queue.submit("sleep", [self.input], [self.output], seconds=300.0)
        self.outcome: object = "it still waits"
        self._thread = threading.Thread(target=self._run, args=(wait, task), daemon=True)
        self._thread.start()

    def _run(self, wait: Wait, task: Task) -> None:
        try:
            self.outcome = wait(self.client, self.queue, task)
        except Exception as error:
            self.outcome = error

    def ended(self) -> bool:
        return not self._thread.is_alive()


def shared_memory() -> set[str]:
    """Names of the system's shared memory that are the project's."""
    return {name for name in os.listdir("/dev/shm") if "polymux" in name}


def test_every_way_of_waiting_ends_when_the_server_is_killed(tmp_path: Path) -> None:
    before = shared_memory()
    device = f"cpu,streams={len(WAITS)}"  # so that every task runs
    with ServerProcess(tmp_path, "--device", device, "--kernels", str(KERNELS)) as server:
        waiters = {name: Waiter(server, wait) for name, wait in WAITS.items()}
        until(lambda: all(queue["pending"] for queue in server.status()["queues"]), 30)
        time.sleep(0.2)  # they have given up spinning
        assert not any(waiter.ended() for waiter in waiters.values())
        server.kill()
        until(lambda: all(waiter.ended() for waiter in waiters.values()), 30)
        outcomes = {name: waiter.outcome for name, waiter in waiters.items()}
        assert {name: type(outcome) for name, outcome in outcomes.items()} == dict.fromkeys(WAITS, ServerGone)
        assert shared_memory() == before
        assert {path.name for path in tmp_path.iterdir()} <= {
            "polymux.sock",
            "polymux.sock.lock",
            "polymux.log",
        }
        server.start()
        for waiter in waiters.values():
            use_afterwards(waiter)


def use_afterwards(waiter: Waiter) -> None:
    """A client of a dead server says so at every call, keeps what it sees readable, and closes."""
    assert waiter.view.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ServerGone):
        waiter.client.request("status")
    with pytest.raises(ServerGone):
        waiter.client.queue()
    waiter.queue.close()
    waiter.client.close()
    waiter.client.close()


def test_an_application_outlives_a_server_that_crashes_again_and_again(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--device", "cpu", "--kernels", str(KERNELS))
    stop = threading.Event()
    right: list[bool] = []
    strange: list[Exception] = []

    def use() -> None:
        while not stop.is_set():
            try:
                with server.connect() as client:
                    queue = client.queue()
                    while not stop.is_set():
                        x, y = queue.array(np.arange(9.0)), queue.zeros(9, "f8")
                        queue.submit("double", [x], [y]).wait()
                        right.append(bool((y.numpy() == 2 * np.arange(9.0)).all()))
            except (NoServer, ServerGone):
                time.sleep(0.01)
            except Exception as error:
                strange.append(error)
                return

    users = [threading.Thread(target=use) for _ in range(3)]
    for user in users:
        user.start()
    try:
        for _ in range(4):
            server.start()
            seen = len(right)
            until(lambda: len(right) > seen + 50 or bool(strange), 60)  # noqa: B023
            server.kill()
    finally:
        stop.set()
        for user in users:
            user.join(30)
    assert strange == []
    assert not any(user.is_alive() for user in users)
    assert len(right) > 200
    assert all(right)
