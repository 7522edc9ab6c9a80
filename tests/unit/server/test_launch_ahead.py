"""A stream starts some tasks ahead: how many, which, in what order they end, and what waits for them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from polymux.client import Client
from polymux.core.errors import BadArgument, KernelFailed
from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError
from tests.unit.server.launching import TIMEOUT_S, Control, held_runtime


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Client, Control]]:
    with held_runtime(monkeypatch) as (client, (control,)):
        yield client, control


def state_of(client: Client, queue: str) -> str:
    reply, _ = client.request("status")
    return next(item["state"] for item in json.loads(reply["json"])["queues"] if item["id"] == queue)


def kernel_error() -> None:
    raise LaunchError(TaskStatus.KERNEL_FAILED, "it divided by zero")


def test_at_most_launch_ahead_tasks_are_under_way(held: tuple[Client, Control]) -> None:
    client, control = held
    queue = client.queue(device="held:0")
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    tasks = [queue.submit("saxpy", [x, y], [y], a=1.0) for _ in range(5)]
    for ended in range(3):
        control.expect_started(3 + ended if ended < 3 else 5)
        assert len(control.launches) == min(3 + ended, 5)
        control.end(ended)
        tasks[ended].wait(TIMEOUT_S)
    control.end_all()
    queue.synchronize(TIMEOUT_S)
    assert y.numpy().tolist() == [5.0] * 4


def test_scratch_memory_is_given_back_when_the_last_queue_is_let_go_of(held: tuple[Client, Control]) -> None:
    client, control = held
    control.end_all()
    queues = [client.queue(device="held:0") for _ in range(2)]
    for queue in queues:
        x = queue.array(np.ones(4))
        queue.submit("saxpy", [x, x], [x], a=1.0)
        queue.synchronize(TIMEOUT_S)
    queues[0].close()
    assert control.trims == 0, "another queue may need it at once"
    queues[1].close()
    with control.changed:
        assert control.changed.wait_for(lambda: control.trims > 0, TIMEOUT_S)


def test_tasks_are_told_to_have_ended_in_their_order(held: tuple[Client, Control]) -> None:
    client, control = held
    queue = client.queue(device="held:0")
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    first, second = (queue.submit("saxpy", [x, y], [y], a=1.0) for _ in range(2))
    control.expect_started(2)
    control.end(1)
    assert not first.done()
    assert not second.done()
    control.end(0)
    second.wait(TIMEOUT_S)
    assert first.done()


def test_an_error_is_that_of_its_task_and_the_next_ones_go_on(held: tuple[Client, Control]) -> None:
    client, control = held
    queue = client.queue(device="held:0")
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    tasks = [queue.submit("saxpy", [x, y], [y], a=1.0) for _ in range(3)]
    control.expect_started(3)
    control.end(0)
    control.end(1, kernel_error)
    control.end(2)
    assert [task.error(TIMEOUT_S) is None for task in tasks] == [True, False, True]
    error = tasks[1].error()
    assert isinstance(error, KernelFailed)
    assert "kernel 'saxpy' on held:0: it divided by zero" in str(error)
    assert y.numpy().tolist() == [2.0] * 4


def test_a_task_that_is_refused_at_once_waits_for_those_before_it(held: tuple[Client, Control]) -> None:
    client, control = held
    queue = client.queue(device="held:0")
    x, y = queue.array(np.ones(4)), queue.zeros(5, "f8")
    good = queue.submit("copy", [x], [queue.zeros(4, "f8")])
    refused = queue.submit("gemm", [x, x], [y])
    control.expect_started(1)
    assert not refused.done()
    control.end_all()
    assert good.error(TIMEOUT_S) is None
    assert isinstance(refused.error(TIMEOUT_S), BadArgument)


def test_reading_a_buffer_waits_for_the_tasks_under_way_that_write_it(held: tuple[Client, Control]) -> None:
    client, control = held
    queue = client.queue(device="held:0")
    x, y = queue.array(np.arange(4.0)), queue.zeros(4, "f8")
    for _ in range(3):
        queue.submit("saxpy", [x, y], [y], a=1.0)
    control.expect_started(3)
    control.end_all()
    assert y.numpy().tolist() == [0.0, 3.0, 6.0, 9.0]


def test_a_queue_that_is_to_move_starts_no_more_tasks_and_moves_when_those_under_way_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with held_runtime(monkeypatch, devices=2) as (client, (first, second)):
        queue = client.queue()
        client.request("migrate", {"queue": queue.id, "device": "held:0"})
        x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
        tasks = [queue.submit("saxpy", [x, y], [y], a=1.0) for _ in range(6)]
        first.expect_started(3)
        request = {"queue": queue.id, "device": "held:1"}
        mover = threading.Thread(target=client.request, args=("migrate", request))
        mover.start()
        while state_of(first.operator, queue.id) != "revoking":
            pass
        first.end_all()
        second.expect_started(3)
        assert len(first.launches) == 3
        assert all(task.done() for task in tasks[:3])
        second.end_all()
        queue.synchronize(TIMEOUT_S)
        mover.join(TIMEOUT_S)
        assert y.numpy().tolist() == [6.0] * 4


def test_a_task_whose_memory_is_held_by_tasks_under_way_waits_for_them_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with held_runtime(monkeypatch, launch_ahead=8, memory_nbytes=64 << 10) as (client, (control,)):
        queue = client.queue(device="held:0")
        control.end_all()
        pairs = [(queue.array(np.full(2048, i, "f8")), queue.zeros(2048, "f8")) for i in range(6)]
        for _ in range(3):
            for x, y in pairs:
                queue.submit("copy", [x], [y])
        queue.synchronize(TIMEOUT_S)
        assert [float(y.numpy()[7]) for _, y in pairs] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_what_is_started_next_is_of_the_queue_with_the_highest_priority(held: tuple[Client, Control]) -> None:
    client, control = held
    low, high = client.queue(device="held:0"), client.queue(priority=5, device="held:0")
    x, y = low.array(np.ones(4)), low.zeros(4, "f8")
    a, b = high.array(np.ones(4)), high.zeros(4, "f8")
    slow = [low.submit("saxpy", [x, y], [y], a=1.0) for _ in range(6)]
    control.expect_started(3)
    urgent = high.submit("copy", [a], [b])
    control.end(0)
    control.expect_started(4)
    assert control.launches[3].name == "copy"
    control.end_all()
    urgent.wait(TIMEOUT_S)
    low.synchronize(TIMEOUT_S)
    assert all(task.done() for task in slow)


def test_closing_a_client_waits_for_its_tasks_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_runtime(monkeypatch) as (client, (control,)):
        queue = client.queue(device="held:0")
        x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
        for _ in range(3):
            queue.submit("saxpy", [x, y], [y], a=1.0)
        control.expect_started(3)
        client.close()
        control.end_all()


def test_buffers_that_no_task_uses_any_more_are_free_for_other_devices(held: tuple[Client, Control]) -> None:
    client, control = held
    control.end_all()
    here, there = client.queue(device="held:0"), client.queue(device="cpu:0")
    x, y = here.array(np.ones(4)), here.zeros(4, "f8")
    for _ in range(20):
        for queue in (here, here, there):
            queue.submit("saxpy", [x, y], [y], a=1.0)
            queue.synchronize(TIMEOUT_S)
    assert y.numpy().tolist() == [60.0] * 4


def test_a_stream_that_goes_on_with_other_buffers_holds_none_of_the_last(
    held: tuple[Client, Control],
) -> None:
    client, control = held
    queue, other = client.queue(device="held:0"), client.queue(device="held:0")
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    first = queue.submit("saxpy", [x, y], [y], a=1.0)
    control.expect_started(1)
    control.end(0)
    first.wait(TIMEOUT_S)
    a, b = other.array(np.ones(4)), other.zeros(4, "f8")
    slow = other.submit("saxpy", [a, b], [b], a=1.0)
    control.expect_started(2)
    client.queue(device="cpu:0").submit("saxpy", [x, y], [y], a=1.0).wait(TIMEOUT_S)
    assert not slow.done()
    control.end_all()
    assert y.numpy().tolist() == [2.0] * 4
