"""An accelerator thread in which something happens that must not: nobody waits for ever, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from polymux.client import Client, Queue
from polymux.core.errors import DeviceFailed, NoDevice, OutOfDeviceMemory
from polymux.server.accelerator import Accelerator
from polymux.server.execution import Execution
from tests.unit.server.launching import TIMEOUT_S, Control, HeldLaunch, held_runtime

ALWAYS = 10**9
PLACES: dict[str, tuple[type, str, int]] = {
    "a turn": (Accelerator, "_turn", 5),
    "the start of a task": (Execution, "start", ALWAYS),
    "waiting for a task": (HeldLaunch, "wait", ALWAYS),
    "telling how a task ended": (Accelerator, "_settle", ALWAYS),
    "letting buffers go": (Execution, "let_rest", ALWAYS),
    "forgetting a queue": (Execution, "forget", ALWAYS),
    "counting": (Accelerator, "_count", ALWAYS),
}
ERRORS = [RuntimeError("a defect"), SystemExit(3), MemoryError("no memory")]


def device_of(this: Any) -> str:
    if isinstance(this, HeldLaunch):
        return this._control.device
    spec = this.device if isinstance(this, Accelerator) else this._device
    return str(spec.id)


class Defect:
    """Makes a method raise in the threads of the held device, so many times from when it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: BaseException) -> None:
        self.left = 0
        self.met = 0
        original: Callable[..., Any] = getattr(owner, name)

        def method(this: Any, *args: Any, **options: Any) -> Any:
            if self.left and device_of(this) == "held:0":
                self.left -= 1
                self.met += 1
                raise error
            return original(this, *args, **options)

        monkeypatch.setattr(owner, name, method)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Client, Control]]:
    with held_runtime(monkeypatch) as (client, (control,)):
        control.end_all()
        yield client, control


def on_it(client: Client) -> Queue:
    queue = client.queue()
    client.request("migrate", {"queue": queue.id, "device": "held:0"})
    return queue


def lost(control: Control) -> str:
    devices = control.operator.status()["devices"]
    return next(device["lost"] or "" for device in devices if device["id"] == "held:0")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_wherever_the_thread_fails_its_queues_go_on_elsewhere(
    place: str, error: BaseException, held: tuple[Client, Control], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = held
    owner, name, times = PLACES[place]
    defect = Defect(monkeypatch, owner, name, error)
    queue, other = on_it(client), client.queue(device="cpu:0")
    x, y = queue.array(np.arange(4.0)), queue.zeros(4, "f8")
    queue.submit("copy", [x], [y]).wait(TIMEOUT_S)
    defect.left = times
    tasks = [queue.submit("copy", [x], [y]) for _ in range(8)]
    for task in tasks:
        assert isinstance(task.error(TIMEOUT_S), DeviceFailed | OutOfDeviceMemory | None)
    client.request("migrate", {"queue": queue.id, "device": "cpu:0"})
    queue.submit("copy", [x], [y]).wait(TIMEOUT_S)
    assert y.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert defect.met
    x, y = other.array(np.ones(4)), other.zeros(4, "f8")
    other.submit("copy", [x], [y]).wait(TIMEOUT_S)
    assert y.numpy().tolist() == [1.0] * 4


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_happens_once_costs_the_tasks_in_hand_and_nothing_else(
    error: BaseException, held: tuple[Client, Control], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, control = held
    defect = Defect(monkeypatch, Accelerator, "_settle", error)
    queue = on_it(client)
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    defect.left = 1
    told = queue.submit("copy", [x], [y]).error(TIMEOUT_S)
    assert isinstance(told, DeviceFailed)
    assert f"the thread of held:0/0 failed: {type(error).__name__}: {error}" in str(told)
    launched = len(control.launches)
    queue.submit("copy", [x], [y]).wait(TIMEOUT_S)
    assert y.numpy().tolist() == [1.0] * 4
    assert len(control.launches) == launched + 1, "it runs on the same device"
    assert not lost(control)


def test_a_thread_that_fails_again_and_again_loses_its_device_and_pinned_queues_are_told(
    held: tuple[Client, Control], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, control = held
    defect = Defect(monkeypatch, Accelerator, "_settle", SystemExit(3))
    queue = client.queue(device="held:0")
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    defect.left = ALWAYS
    tasks = [queue.submit("copy", [x], [y]) for _ in range(12)]
    outcomes = [task.error(TIMEOUT_S) for task in tasks]
    assert {type(error) for error in outcomes} == {DeviceFailed, NoDevice}
    assert "it failed 3 times in a row" in lost(control)
    assert "the thread of held:0/0 failed: SystemExit: 3" in lost(control)
    assert client.queue().read(x).result(TIMEOUT_S).tolist() == [1.0] * 4
