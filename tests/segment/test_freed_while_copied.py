"""A buffer that is freed while the server spills it: its place in the segment is not given to another one too early."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import polymux.server.runtime
from polymux.client import Client
from polymux.core.device_spec import AbsentDevice, DeviceSpec, Share
from polymux.core.ids import DeviceId
from polymux.device.cpu import CpuDevice, CpuStream
from polymux.device.protocol import Device
from polymux.server.options import RuntimeOptions
from polymux.server.runtime import Runtime

COUNT = 50_000
TIMEOUT_S = 30.0


class Gate:
    """Where a copy out of the device waits."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.open.set()


class GatedStream:
    """A cpu's stream whose copies out of the device wait at a gate, already decided on."""

    def __init__(self, stream: CpuStream, gate: Gate) -> None:
        self._stream = stream
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def copy_out(self, memory: Any, host: Any) -> None:
        self._gate.reached.set()
        assert self._gate.open.wait(TIMEOUT_S)
        self._stream.copy_out(memory, host)


class GatedDevice(CpuDevice):
    gate = Gate()

    def open_stream(self, share: Share | None = None) -> Any:
        return GatedStream(super().open_stream(share or Share()), self.gate)


@pytest.fixture
def gate() -> Gate:
    GatedDevice.gate = Gate()
    return GatedDevice.gate


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> Iterator[Client]:
    def found(requests: Sequence[str], **options: Any) -> tuple[list[Device], list[AbsentDevice]]:
        capacity = COUNT * 8 * 3 // 2
        spec = DeviceSpec(DeviceId("gated:0"), "cpu", "a slow one", capacity, "own", 1, 1, ("cpu",))
        return [GatedDevice(spec, (0,), options["native_caller"])], []

    monkeypatch.setattr(polymux.server.runtime, "discover", found)
    with Runtime(RuntimeOptions(devices=("cpu:0",))) as runtime:
        with Client(fd=runtime.connect_pair().detach(), segment_nbytes=64 << 20) as made:
            yield made


def test_the_place_of_a_freed_buffer_is_reused_only_after_the_copy_to_it(client: Client, gate: Gate) -> None:
    queue = client.queue()
    old, other = queue.array(np.full(COUNT, 1.0)), queue.array(np.full(COUNT, 2.0))
    queue.submit("saxpy", [old, old], [old], a=1.0).wait(TIMEOUT_S)  # it is on the device, and only there
    gate.open.clear()
    gate.reached.clear()
    spilling = queue.submit("saxpy", [other, other], [other], a=1.0)  # there is no room for both
    assert gate.reached.wait(TIMEOUT_S)
    made: list[Any] = []

    def free_and_allocate() -> None:
        old.close()
        made.extend(queue.array(np.full(COUNT, float(number))) for number in range(3, 6))

    thread = threading.Thread(target=free_and_allocate)
    thread.start()
    thread.join(0.2)  # without waiting for the copy it has reused the place by now
    gate.open.set()
    thread.join(TIMEOUT_S)
    spilling.wait(TIMEOUT_S)
    for number, buffer in enumerate(made, start=3):
        assert (buffer.numpy() == number).all()
