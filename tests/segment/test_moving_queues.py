"""Queues that move while their applications go on: nothing is lost, nothing computed twice, data follow."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from polymux.client import Client
from polymux.core.errors import InvalidRequest
from tests.segment.server_process import ServerProcess, until

KERNELS = """
from polymux.kernel import kernel
import time

@kernel("add_one", inputs="x", outputs="y")
def add_one(x, y):
    y[...] = x + 1

@kernel("slow_add_one", inputs="x", outputs="y")
def slow_add_one(x, y):
    time.sleep(0.002)
    y[...] = x + 1

@kernel("fails_on_seven", inputs="x", outputs="y")
def fails_on_seven(x, y):
    y[...] = x + 1
    if y[0] == 7:
        raise ValueError("seven")
"""
DEVICES = ("cpu:0", "cpu:1", "cpu:2")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "k.py").write_text(KERNELS)
    devices = ("cpu", "cpu:0,memory_nbytes=1MiB", "cpu:1,memory_nbytes=300KiB,streams=2")
    words = [word for device in devices for word in ("--device", device)]
    with ServerProcess(folder, *words, "--kernels", str(folder / "k.py")) as made:
        yield made


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with server.connect() as made:
        yield made


def migrate(client: Client, queue: str, device: str) -> dict[str, str]:
    return client.request("migrate", {"queue": queue, "device": device})[0]


def queue_state(server: ServerProcess, queue: str) -> dict[str, Any]:
    return next(state for state in server.status()["queues"] if state["id"] == queue)


def test_a_chain_of_tasks_is_right_however_often_its_queue_moves(
    client: Client, server: ServerProcess
) -> None:
    queue = client.queue(capacity=256)
    x = queue.zeros(1000, "f8")
    stop = threading.Event()
    moves: list[str] = []

    def move() -> None:
        rng = random.Random(1)
        with server.connect("operator") as operator:
            while not stop.is_set():
                moves.append(migrate(operator, queue.id, rng.choice(DEVICES))["message"])

    thread = threading.Thread(target=move)
    thread.start()
    tasks = 0
    while tasks < 3000 or len(moves) < 50:
        queue.submit("add_one", [x], [x])
        tasks += 1
    queue.synchronize(60)
    stop.set()
    thread.join()
    assert (x.numpy() == tasks).all()
    assert queue_state(server, queue.id)["completed"] >= tasks


def test_several_queues_that_share_buffers_move_and_stay_right(client: Client) -> None:
    queues = [client.queue() for _ in range(4)]
    shared = queues[0].array(np.arange(1000.0))
    own = [queue.zeros(1000, "f8") for queue in queues]
    rng = random.Random(2)
    for _ in range(40):
        tasks = []
        for queue, target in zip(queues, own, strict=True):
            migrate(client, queue.id, rng.choice(DEVICES))
            tasks += [
                queue.submit("add_one", [shared], [target]),
                queue.submit("add_one", [target], [target]),
            ]
        for task in tasks:
            task.wait(30)
        for target in own:
            assert (target.numpy() == np.arange(1000.0) + 2).all()


def test_a_failed_task_is_reported_once_wherever_its_queue_is(client: Client) -> None:
    queue = client.queue()
    x = queue.zeros(4, "f8")
    tasks = []
    for number in range(20):
        tasks.append(queue.submit("fails_on_seven", [x], [x]))
        migrate(client, queue.id, DEVICES[number % 3])
    errors = [task.error(30) for task in tasks]
    assert [number for number, error in enumerate(errors) if error is not None] == [6]
    assert "seven" in str(errors[6])
    assert (x.numpy() == 20).all()


def test_a_migration_says_how_much_follows(client: Client, server: ServerProcess) -> None:
    queue = client.queue()
    migrate(client, queue.id, "cpu:1")
    x, y = queue.zeros(1000, "f8"), queue.zeros(1000, "f8")
    queue.submit("add_one", [x], [y]).wait(20)
    idle = migrate(client, queue.id, "cpu:0")
    assert (idle["pending"], idle["nbytes"]) == ("0", "0")
    tasks = [queue.submit("slow_add_one", [y], [y]) for _ in range(50)]
    tasks[0].wait(20)  # from now on the data are at cpu:0
    moved = migrate(client, queue.id, "cpu:1")
    assert moved["message"] == f"queue {queue.id} runs on cpu:1"
    assert int(moved["pending"]) > 10
    assert int(moved["nbytes"]) >= 8000
    assert int(moved["elapsed_ns"]) > 0
    queue.synchronize(30)
    assert (y.numpy() == 51).all()


def test_only_data_of_pending_tasks_move(client: Client, server: ServerProcess) -> None:
    queue = client.queue()
    migrate(client, queue.id, "cpu:1")
    idle, used = queue.zeros(1000, "f8"), queue.zeros(1000, "f8")
    for buffer in (idle, used):
        queue.submit("add_one", [buffer], [buffer]).wait(20)

    def used_nbytes(device: str) -> int:
        return next(int(d["used_nbytes"]) for d in server.status()["devices"] if d["id"] == device)

    before = used_nbytes("cpu:1")
    migrate(client, queue.id, "cpu:2")
    queue.submit("add_one", [used], [used]).wait(20)
    assert before - used_nbytes("cpu:1") == used_nbytes("cpu:2")
    assert used_nbytes("cpu:1") > 0
    assert (idle.numpy() == 1).all()
    assert (used.numpy() == 2).all()


@pytest.mark.parametrize(
    ("queue", "device", "said"),
    [
        ("9.9", "cpu:0", "open queues"),
        ("", "cpu:0", "open queues"),
        (None, "cpu:7", "'cpu:7' is unknown; devices: cpu:0"),
        ("pinned", "cpu:1", "pinned to cpu:0"),
    ],
)
def test_a_migration_that_cannot_be_is_refused_with_what_can(
    client: Client, queue: str | None, device: str, said: str
) -> None:
    free, pinned = client.queue(), client.queue("pinned", device="cpu:0")
    with pytest.raises(InvalidRequest, match=said):
        migrate(client, free.id if queue is None else queue, device)
    pinned.close()


def test_a_queue_can_be_named_and_two_of_a_name_cannot(client: Client) -> None:
    first = client.queue("heat")
    assert migrate(client, "heat", "cpu:1")["message"] == f"queue {first.id} runs on cpu:1"
    second = client.queue("heat")
    with pytest.raises(InvalidRequest, match="2 queues are named"):
        migrate(client, "heat", "cpu:0")
    second.close()


def test_a_queue_that_is_closed_while_it_moves_is_an_answer_not_a_hang(client: Client) -> None:
    for _ in range(20):
        queue = client.queue()
        x = queue.zeros(8, "f8")
        for _ in range(20):
            queue.submit("slow_add_one", [x], [x])
        thread = threading.Thread(target=queue.close)
        thread.start()
        with contextlib.suppress(InvalidRequest):
            migrate(client, queue.id, "cpu:1")
        thread.join(30)
        assert not thread.is_alive()


def test_buffers_of_two_devices_that_are_almost_full_take_turns_and_stay_right(client: Client) -> None:
    """Working sets of more than half of the device evict each other for as long as both work, and both finish."""
    queues = [client.queue(device="cpu:2") for _ in range(2)]
    sets = [[queue.zeros(12_000, "f8"), queue.zeros(12_000, "f8")] for queue in queues]  # 2 of 190 KiB in 300
    for _ in range(100):
        for queue, (a, b) in zip(queues, sets, strict=True):
            queue.submit("add_one", [a], [b])
            queue.submit("add_one", [b], [a])
    for queue, (a, b) in zip(queues, sets, strict=True):
        queue.synchronize(60)
        assert (a.numpy() == 200).all()
        assert (b.numpy() == 199).all()


def test_memory_counters_return_to_zero_after_many_buffers(client: Client, server: ServerProcess) -> None:
    queue = client.queue(device="cpu:1")
    rng = random.Random(3)
    kept: list[Any] = []
    for number in range(600):
        buffer = queue.zeros(rng.randint(1, 5000), "f8")
        queue.submit("add_one", [buffer], [buffer])
        kept.append((buffer, number))
        if len(kept) > 20:
            old, _ = kept.pop(rng.randrange(len(kept)))
            old.close()
    queue.synchronize(60)
    for buffer, _ in kept:
        assert (buffer.numpy() == 1).all()
        buffer.close()
    until(lambda: all(device["used_nbytes"] == 0 for device in server.status()["devices"]), 5.0)


def test_freed_and_reused_memory_of_the_segment_is_never_overwritten_by_a_spill(client: Client) -> None:
    queue = client.queue(device="cpu:2")
    fillers = [queue.zeros(15_000, "f8") for _ in range(3)]
    for number in range(300):
        temporary = queue.array(np.full(4000, -1.0))
        queue.submit("add_one", [temporary], [temporary]).wait(20)
        temporary.close()
        fresh = queue.array(np.full(4000, float(number)))  # most likely in the same place
        queue.submit("add_one", [fillers[number % 3]], [fillers[number % 3]])
        assert (fresh.numpy() == number).all()
        queue.synchronize(20)
        assert (fresh.numpy() == number).all()
        fresh.close()


def test_the_status_is_json_with_the_queues_history(client: Client) -> None:
    queue = client.queue()
    for device in ("cpu:1", "cpu:0", "cpu:1"):
        migrate(client, queue.id, device)
    state = json.loads(client.request("status")[0]["json"])
    assert next(item for item in state["queues"] if item["id"] == queue.id)["migrations"] in (2, 3)
