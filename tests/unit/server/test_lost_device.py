"""A device that is lost in the middle: what runs again, what is told, and what becomes of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from polymux.client import Client, Queue
from polymux.core.errors import DeviceFailed, NoDevice
from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError
from tests.unit.server.launching import TIMEOUT_S, Control, held_runtime


def broken() -> None:
    raise LaunchError(TaskStatus.DEVICE_FAILED, "the bus is on fire")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Client, Control]]:
    with held_runtime(monkeypatch) as (client, (control,)):
        yield client, control


def on_it(client: Client) -> Queue:
    queue = client.queue()
    client.request("migrate", {"queue": queue.id, "device": "held:0"})
    return queue


def test_an_idempotent_task_runs_again_where_the_queue_goes(held: tuple[Client, Control]) -> None:
    client, control = held
    queue = on_it(client)
    x, y = queue.array(np.arange(4.0)), queue.zeros(4, "f8")
    control.fault = broken
    control.end_all()
    queue.submit("copy", [x], [y]).wait(TIMEOUT_S)
    assert y.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert len(control.launches) == 3, "it counts as lost after three failures"


def test_tasks_that_were_started_behind_it_run_again_after_it(held: tuple[Client, Control]) -> None:
    client, control = held
    queue = on_it(client)
    x, y, z, w = (queue.array(np.full(4, i, "f8")) for i in range(1, 5))
    control.fault = broken
    chain = [queue.submit("copy", [a], [b]) for a, b in ((x, y), (y, z), (z, w))]
    control.expect_started(3)
    control.end_all()
    assert [task.error(TIMEOUT_S) for task in chain] == [None] * 3
    assert w.numpy().tolist() == [1.0] * 4


def test_one_failure_alone_costs_neither_the_task_nor_the_device(held: tuple[Client, Control]) -> None:
    client, control = held
    queue = on_it(client)
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    task = queue.submit("copy", [x], [y])
    control.expect_started(1)
    control.end(0, broken)
    control.expect_started(2)
    control.end(1)
    task.wait(TIMEOUT_S)
    assert y.numpy().tolist() == [1.0] * 4
    control.end_all()
    queue.submit("copy", [x], [y]).wait(TIMEOUT_S)
    assert len(control.launches) == 3


@pytest.mark.parametrize("in_place", [True, False])
def test_a_task_that_must_not_run_twice_ends_as_failed_and_the_next_ones_go_on(
    held: tuple[Client, Control], in_place: bool
) -> None:
    client, control = held
    queue = on_it(client)
    x, y, z = (queue.array(np.ones(4)) for _ in range(3))
    control.fault = broken
    control.end_all()
    out = y if in_place else z
    outcomes = [queue.submit("saxpy", [x, y], [out], a=1.0).error(TIMEOUT_S) for _ in range(4)]
    assert [isinstance(error, DeviceFailed) for error in outcomes] == [True, True, True, False]
    assert "kernel 'saxpy' on held:0: the bus is on fire" in str(outcomes[0])
    assert outcomes[3] is None
    assert out.numpy().tolist() == [2.0] * 4


def test_a_task_whose_input_a_later_one_has_overwritten_does_not_run_again(
    held: tuple[Client, Control],
) -> None:
    client, control = held
    queue = on_it(client)
    x, y, z = (queue.array(np.full(4, i, "f8")) for i in range(3))
    first, second = queue.submit("copy", [x], [y]), queue.submit("copy", [z], [x])
    control.expect_started(2)
    control.end(0, broken)
    control.end_all()
    assert isinstance(first.error(TIMEOUT_S), DeviceFailed)
    assert second.error(TIMEOUT_S) is None
    assert x.numpy().tolist() == [2.0] * 4


def test_a_task_that_loses_one_device_after_the_other_ends_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_runtime(monkeypatch, devices=2) as (client, controls):
        for control in controls:
            control.fault = broken
            control.end_all()
        queue = client.queue()
        client.request("migrate", {"queue": queue.id, "device": "held:1"})
        x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
        outcomes = [queue.submit("copy", [x], [y]).error(TIMEOUT_S) for _ in range(4)]
        assert outcomes[-1] is None, "the cpu is left, whatever one task did to the others"


def test_queues_that_are_pinned_to_it_say_that_it_is_lost(held: tuple[Client, Control]) -> None:
    client, control = held
    queue = client.queue(device="held:0")
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    control.fault = broken
    tasks = [queue.submit("copy", [x], [y]) for _ in range(8)]
    control.expect_started(3)
    control.end_all()
    outcomes = [task.error(TIMEOUT_S) for task in tasks]
    assert [type(error) for error in outcomes[:3]] == [DeviceFailed] * 3
    assert {type(error) for error in outcomes} == {DeviceFailed, NoDevice}
    assert "it failed 3 times in a row" in str(outcomes[-1])
    assert client.queue().read(x).result(TIMEOUT_S).tolist() == [1.0] * 4


def lose(queue: Queue, control: Control, also: Callable[[], None] = lambda: None) -> None:
    """Have the device fail three tasks of another queue, and the copies with them if asked."""
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    queue.submit("saxpy", [x, y], [y], a=1.0).wait(TIMEOUT_S)
    control.fault = broken
    also()
    for _ in range(3):
        assert isinstance(queue.submit("saxpy", [x, y], [y], a=1.0).error(TIMEOUT_S), DeviceFailed)


def test_data_that_can_still_be_read_go_on_with_the_queue(held: tuple[Client, Control]) -> None:
    client, control = held
    control.end_all()
    queue, other = on_it(client), on_it(client)
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    queue.submit("saxpy", [x, y], [y], a=3.0).wait(TIMEOUT_S)
    lose(other, control)
    queue.submit("saxpy", [x, y], [y], a=1.0).wait(TIMEOUT_S)
    assert y.numpy().tolist() == [4.0] * 4


def test_data_that_only_the_lost_device_had_are_an_error_until_they_are_written_anew(
    held: tuple[Client, Control],
) -> None:
    client, control = held
    control.end_all()
    queue, other = on_it(client), on_it(client)
    x, y, z = queue.array(np.ones(4)), queue.zeros(4, "f8"), queue.zeros(4, "f8")
    queue.submit("saxpy", [x, y], [y], a=3.0).wait(TIMEOUT_S)
    lose(other, control, lambda: setattr(control, "copy_fault", broken))
    for _ in range(5):  # more than the failures that would cost the device which reads it
        error = queue.submit("copy", [y], [z]).error(TIMEOUT_S)
        assert isinstance(error, DeviceFailed)
        assert "the content of buffer" in str(error)
        assert "only held:0 had it, which was lost" in str(error)
        assert "write it anew" in str(error)
    with pytest.raises(DeviceFailed, match="write it anew"):
        y.numpy()
    assert x.numpy().tolist() == [1.0] * 4, "the host's copy of what was only read is valid"
    queue.submit("copy", [x], [y]).wait(TIMEOUT_S)
    queue.submit("copy", [y], [z]).wait(TIMEOUT_S)
    assert z.numpy().tolist() == [1.0] * 4


def test_lost_data_can_be_written_anew_from_the_client(held: tuple[Client, Control]) -> None:
    client, control = held
    control.end_all()
    queue, other = on_it(client), on_it(client)
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    queue.submit("saxpy", [x, y], [y], a=3.0).wait(TIMEOUT_S)
    lose(other, control, lambda: setattr(control, "copy_fault", broken))
    assert queue.submit("saxpy", [x, y], [y], a=1.0).error(TIMEOUT_S) is not None
    queue.write(y, np.full(4, 5.0)).wait(TIMEOUT_S)
    queue.submit("saxpy", [x, y], [y], a=1.0).wait(TIMEOUT_S)
    assert y.numpy().tolist() == [6.0] * 4


def test_a_copy_that_fails_once_is_made_again(held: tuple[Client, Control]) -> None:
    client, control = held
    control.end_all()
    queue = on_it(client)
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    queue.submit("saxpy", [x, y], [y], a=3.0).wait(TIMEOUT_S)
    faults: list[Any] = [broken]
    control.copy_fault = lambda: faults.pop()() if faults else None
    assert y.numpy().tolist() == [3.0] * 4
    assert not faults


def test_a_device_that_fails_while_a_queue_moves_to_it_keeps_neither_queue_nor_data(
    held: tuple[Client, Control],
) -> None:
    client, control = held
    control.end_all()
    control.copy_fault = broken
    queue = on_it(client)
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    for _ in range(3):
        queue.submit("copy", [x], [y]).wait(TIMEOUT_S)
    queue.submit("saxpy", [x, y], [y], a=1.0).wait(TIMEOUT_S)
    assert y.numpy().tolist() == [2.0] * 4
