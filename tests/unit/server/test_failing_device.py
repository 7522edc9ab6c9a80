"""A device whose driver fails: its tasks get errors, then its queues move, and the other devices never notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import polymux.server.runtime
from polymux.client import Client
from polymux.core.device_spec import AbsentDevice, DeviceSpec, Share
from polymux.core.errors import DeviceFailed, KernelFailed, NoDevice
from polymux.core.ids import DeviceId
from polymux.core.status import TaskStatus
from polymux.device.cpu import CpuDevice, CpuStream
from polymux.device.protocol import Device, LaunchError, Operand, Prepared, Scalars, Shapes
from polymux.device.registry import discover
from polymux.server.options import RuntimeOptions
from polymux.server.runtime import Runtime

Fault = Callable[[], None]


class Faults:
    """What goes wrong from now on."""

    def __init__(self) -> None:
        self.launch: Fault = lambda: None
        self.copy: Fault = lambda: None


class FailingStream:
    """A stream that does what the cpu's does, unless something goes wrong."""

    def __init__(self, stream: CpuStream, faults: Faults) -> None:
        self._stream = stream
        self._faults = faults
        self.share = stream.share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def copy_in(self, memory: Any, host: Any) -> None:
        self._faults.copy()
        self._stream.copy_in(memory, host)

    def launch(self, prepared: Prepared, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:
        self._faults.launch()
        return self._stream.launch(prepared, operands, scalars)


class FailingDevice(CpuDevice):
    """A cpu with memory of its own and a driver that fails on demand."""

    faults = Faults()

    def open_stream(self, share: Share | None = None) -> Any:
        return FailingStream(super().open_stream(share or Share()), self.faults)


def driver_error() -> None:
    raise LaunchError(TaskStatus.DEVICE_FAILED, "the bus is on fire")


def surprise() -> None:
    raise RuntimeError("nobody expected this")


@pytest.fixture
def faults() -> Faults:
    FailingDevice.faults = Faults()
    return FailingDevice.faults


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> Iterator[Client]:
    def found(requests: Sequence[str], **options: Any) -> tuple[list[Device], list[AbsentDevice]]:
        devices, absent = discover(("cpu",), **options)
        spec = DeviceSpec(DeviceId("failing:0"), "cpu", "a bad one", 1 << 20, "own", 1, 1, ("cpu",))
        return [*devices, FailingDevice(spec, (0,), options["native_caller"])], absent

    monkeypatch.setattr(polymux.server.runtime, "discover", found)
    with Runtime(RuntimeOptions(devices=("cpu", "cpu:0"))) as runtime:
        with Client(fd=runtime.connect_pair().detach(), segment_nbytes=64 << 20) as made:
            yield made


@pytest.mark.parametrize("fault", [driver_error, surprise])
def test_a_task_on_a_failing_device_is_an_error_and_the_next_one_can_work(
    client: Client, faults: Faults, fault: Fault
) -> None:
    queue = client.queue(device="failing:0")
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    faults.launch = fault
    error = queue.submit("copy", [x], [y]).error(20)
    assert isinstance(error, DeviceFailed)
    assert "kernel 'copy' on failing:0" in str(error)
    faults.launch = lambda: None
    queue.submit("copy", [x], [y]).wait(20)
    assert y.numpy().tolist() == [1.0] * 4


def test_a_failing_copy_leaves_the_data_where_they_were(client: Client, faults: Faults) -> None:
    queue = client.queue(device="failing:0")
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    faults.copy = driver_error
    assert isinstance(queue.submit("copy", [x], [y]).error(20), DeviceFailed)
    faults.copy = lambda: None
    assert x.numpy().tolist() == [1.0] * 4
    queue.submit("copy", [x], [y]).wait(20)
    assert y.numpy().tolist() == [1.0] * 4


def test_other_devices_go_on_while_one_fails(client: Client, faults: Faults) -> None:
    bad, good = client.queue(device="failing:0"), client.queue(device="cpu:0")
    x, y = bad.array(np.ones(4)), bad.zeros(4, "f8")
    a, b = good.array(np.ones(4)), good.zeros(4, "f8")
    faults.launch = driver_error
    failing = [bad.submit("copy", [x], [y]) for _ in range(20)]
    for _ in range(100):
        good.submit("saxpy", [a, b], [b], a=1.0)
    good.synchronize(20)
    assert b.numpy().tolist() == [100.0] * 4
    assert all(task.error(20) is not None for task in failing)


def test_queues_leave_a_device_that_is_lost_and_pinned_ones_say_why_they_cannot(
    client: Client, faults: Faults
) -> None:
    free, pinned = client.queue(), client.queue(device="failing:0")
    client.request("migrate", {"queue": free.id, "device": "failing:0"})
    x, y = free.array(np.ones(4)), free.zeros(4, "f8")
    faults.launch = driver_error
    failing = [free.submit("saxpy", [x, y], [y], a=1.0).error(20) for _ in range(5)]
    assert [isinstance(error, DeviceFailed) for error in failing] == [True] * 3 + [False] * 2
    assert failing[3:] == [None, None]
    assert y.numpy().tolist() == [2.0] * 4
    error = pinned.submit("copy", [x], [y]).error(20)
    assert isinstance(error, NoDevice)
    assert "it failed 3 times in a row" in str(error)
    pinned.close()


def test_a_kernel_that_fails_does_not_cost_the_device(client: Client, faults: Faults) -> None:
    def kernel_error() -> None:
        raise LaunchError(TaskStatus.KERNEL_FAILED, "the kernel's own fault")

    queue = client.queue(device="failing:0")
    x, y = queue.array(np.ones(4)), queue.zeros(4, "f8")
    faults.launch = kernel_error
    for _ in range(10):
        assert isinstance(queue.submit("copy", [x], [y]).error(20), KernelFailed)
    faults.launch = lambda: None
    queue.submit("copy", [x], [y]).wait(20)
