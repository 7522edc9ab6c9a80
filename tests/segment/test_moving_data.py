"""What moves with a queue: copies shared by readers, memory that runs out, clients killed in every phase of a move."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polymux.server.runtime
from polymux.client import Client, Queue
from polymux.core.device_spec import AbsentDevice, DeviceSpec, Share
from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.device.cpu import CpuDevice, CpuStream
from polymux.device.protocol import Device, OutOfMemory
from polymux.server.accelerator import Accelerator
from polymux.server.options import KernelsFile, RuntimeOptions
from polymux.server.runtime import Runtime
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
APPLICATION = Path(__file__).with_name("application.py")
COUNT = 20_000
NBYTES = 8 * COUNT
CAPACITY_NBYTES = 1 << 20
TIMEOUT_S = 30.0
PHASES = ("prepare", "released", "first task")


class Gate:
    """Where a step of a move waits, so that a test can do something meanwhile."""

    def __init__(self) -> None:
        self.phase = ""
        self.reached = threading.Event()
        self.open = threading.Event()

    def close(self, phase: str) -> None:
        """Let the next step of this kind wait."""
        self.open.clear()
        self.reached.clear()
        self.phase = phase

    def come_by(self, phase: str) -> None:
        """Be a step of this kind."""
        if phase == self.phase:
            self.phase = ""
            self.reached.set()
            assert self.open.wait(TIMEOUT_S)


class GatedStream:
    """A cpu's stream whose copies from its peer are steps: of a preparation, or of the first task's."""

    def __init__(self, stream: CpuStream, gate: Gate) -> None:
        self._stream = stream
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def copy_peer(self, *arguments: Any) -> None:
        mover = threading.current_thread().name == "polymux-mover"
        self._gate.come_by("prepare" if mover else "first task")
        self._stream.copy_peer(*arguments)


class GatedDevice(CpuDevice):
    """A cpu whose copies pass a gate, and whose driver refuses the next so many allocations."""

    gate = Gate()
    refusals = 0

    def open_stream(self, share: Share | None = None) -> Any:
        return GatedStream(super().open_stream(share or Share()), self.gate)

    def allocate(self, nbytes: int) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise OutOfMemory(f"{self.spec.id} has none of the {nbytes} bytes that it should have")
        return super().allocate(nbytes)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Runtime]:
    GatedDevice.gate = Gate()
    released = Accelerator._released

    def released_at_the_gate(self: Accelerator, *arguments: Any) -> None:
        GatedDevice.gate.come_by("released")
        released(self, *arguments)

    def found(requests: Sequence[str], **options: Any) -> tuple[list[Device], list[AbsentDevice]]:
        made: list[Device] = []
        for index in range(2):
            spec = DeviceSpec(
                DeviceId(f"gated:{index}"), "cpu", "a cpu", CAPACITY_NBYTES, "own", 1, 1, ("cpu",)
            )
            made.append(GatedDevice(spec, (0,), options["native_caller"]))
        return made, []

    monkeypatch.setattr(polymux.server.runtime, "discover", found)
    monkeypatch.setattr(Accelerator, "_released", released_at_the_gate)
    with Runtime(RuntimeOptions(devices=("cpu:0",), kernels=(KernelsFile(KERNELS),))) as made:
        made.listen(tmp_path / "socket")
        yield made
        GatedDevice.gate.open.set()


@pytest.fixture
def client(runtime: Runtime) -> Iterator[Client]:
    with Client(fd=runtime.connect_pair().detach(), segment_nbytes=64 << 20) as made:
        yield made


def migrate(client: Client, queue: str, device: str) -> str:
    return client.request("migrate", {"queue": queue, "device": device})[0]["message"]


def place(client: Client, queue: str) -> str:
    """Device on which a queue runs."""
    state = json.loads(client.request("status")[0]["json"])
    return str(next(item["device"] for item in state["queues"] if item["id"] == queue))


def memory(runtime: Runtime) -> list[tuple[int, int]]:
    """Used and kept bytes of each device."""
    return [(usage.used_nbytes, usage.kept_nbytes) for usage in runtime.parts.residency.usage().values()]


def copied(runtime: Runtime) -> list[int]:
    """Bytes copied into each device so far."""
    return [runtime.parts.measurements.copied_nbytes(location)[0] for location in (1, 2)]


def rounded(nbytes: int) -> int:
    """Bytes that a large buffer takes: whole pages."""
    return -(-nbytes // 4096) * 4096


def fill(queue: Queue, tasks: int, x: Any, y: Any) -> None:
    for _ in range(tasks):
        queue.submit("sleep", [x], [y], seconds=0.002)


def test_a_buffer_that_tasks_on_two_devices_read_is_copied_once_to_each(
    client: Client, runtime: Runtime
) -> None:
    queues = [client.queue(device=name) for name in client.devices]
    shared = queues[0].array(np.arange(float(COUNT)))
    own = [queue.zeros(COUNT, "f8") for queue in queues]
    for _ in range(30):
        for queue, target in zip(queues, own, strict=True):
            queue.submit("double", [shared], [target])
    for queue in queues:
        queue.synchronize(TIMEOUT_S)
    assert copied(runtime) == [rounded(NBYTES)] * 2
    for target in own:
        assert (target.numpy() == 2 * np.arange(float(COUNT))).all()


def test_data_come_right_by_every_way_between_memories(tmp_path: Path) -> None:
    """One leg, between peers, and in chunks through the host: OpenCL and a simulated device have nothing in common."""
    pytest.importorskip("pyopencl")
    cards = []
    for name in ("first", "second"):
        card = tmp_path / f"{name}.toml"
        card.write_text(
            f'name = "{name}"\nmemory_nbytes = "64MiB"\nunits = 1\n'
            "[transfer]\nbandwidth_bytes_per_s = 1e10\nlatency_ns = 0\n"
            "[compute]\nlatency_ns = 0\nbandwidth_bytes_per_s = 1e10\n"
        )
        cards.append(f"simulated={card}")
    requests = ("cpu", "cpu:0", "opencl:0", *cards, "cpu:0-0")
    words = [word for request in requests for word in ("--device", request)]
    rng = np.random.default_rng(4)
    with ServerProcess(tmp_path, *words) as server, server.connect() as client, client.queue() as queue:
        assert len(client.devices) == len(requests)
        right_x, right_y = rng.standard_normal(COUNT * 60), np.zeros(COUNT * 60)
        x, y = queue.array(right_x), queue.array(right_y)
        for device in [*client.devices, *reversed(client.devices), *rng.choice(client.devices, 20)]:
            queue.submit("saxpy", [x, y], [y], a=1.0, device=str(device))
            queue.submit("saxpy", [x, x], [x], a=-0.5)
            right_y, right_x = right_x + right_y, right_x * -0.5 + right_x
        queue.synchronize(60)
        np.testing.assert_array_equal(y.numpy(), right_y)
        np.testing.assert_array_equal(x.numpy(), right_x)


def test_a_queue_that_goes_to_and_fro_takes_memory_once_and_copies_what_it_writes(
    client: Client, runtime: Runtime
) -> None:
    queue = client.queue()
    weights, state = queue.array(np.full(COUNT, 2.0)), queue.zeros(COUNT, "f8")
    for turn in range(10):
        fill(queue, 3, weights, state)
        queue.submit("saxpy", [weights, state], [state], a=1.0)
        migrate(client, queue.id, client.devices[turn % 2])
        queue.synchronize(TIMEOUT_S)
    assert (state.numpy() == 4).all()
    assert max(used + kept for used, kept in memory(runtime)) < 2 * NBYTES + 8192
    assert sum(copied(runtime)) < (2 + 11) * (NBYTES + 4096)  # the weights once to each device


def test_a_client_reads_and_writes_what_was_copied_ahead(client: Client, runtime: Runtime) -> None:
    """It asks, since the device has a copy as well; afterwards that one is stale."""
    queue = client.queue()
    here, there = client.devices
    migrate(client, queue.id, here)
    x, y = queue.array(np.full(COUNT, 3.0)), queue.zeros(COUNT, "f8")
    for value in (3.0, 5.0, 7.0):
        x.numpy()[:] = value
        fill(queue, 10, x, y)
        assert migrate(client, queue.id, there) == f"queue {queue.id} runs on {there}"
        queue.synchronize(TIMEOUT_S)
        assert (y.numpy() == value).all()
        here, there = there, here


def test_a_driver_without_memory_leaves_the_queue_where_it_was_with_its_data(
    client: Client, runtime: Runtime
) -> None:
    queue = client.queue()
    migrate(client, queue.id, "gated:0")
    x, y = queue.array(np.full(COUNT, 3.0)), queue.zeros(COUNT, "f8")
    fill(queue, 40, x, y)
    device = runtime.parts.devices[1]
    assert isinstance(device, GatedDevice)
    device.refusals = 4
    with pytest.raises(InvalidRequest, match=rf"queue {queue.id} stays on gated:0: .*should have"):
        migrate(client, queue.id, "gated:1")
    device.refusals = 0
    assert memory(runtime)[1] == (0, 0)
    assert migrate(client, queue.id, "gated:1") == f"queue {queue.id} runs on gated:1"
    queue.synchronize(TIMEOUT_S)
    assert (y.numpy() == 3).all()


def test_memory_that_a_running_task_of_another_application_holds_leaves_the_queue_where_it_was(
    client: Client, runtime: Runtime
) -> None:
    queue, other = client.queue(), client.queue(device="gated:1")
    migrate(client, queue.id, "gated:0")
    held = other.zeros((CAPACITY_NBYTES - NBYTES) // 8 - 4096, "f8")
    held_too = other.zeros(8, "f8")
    x, y = queue.array(np.full(COUNT, 3.0)), queue.zeros(COUNT, "f8")
    other.submit("sleep", [held], [held], seconds=0.5)
    until(lambda: memory(runtime)[1][0] > 0)
    fill(queue, 50, x, y)
    with pytest.raises(InvalidRequest, match="running tasks hold its memory"):
        migrate(client, queue.id, "gated:1")
    other.submit("double", [held_too], [held_too])
    for waiting in (queue, other):
        waiting.synchronize(TIMEOUT_S)
    assert (y.numpy() == 3).all()


def test_a_device_that_is_too_small_for_a_pending_task_leaves_the_queue_where_it_was(
    client: Client, runtime: Runtime
) -> None:
    queue = client.queue()
    migrate(client, queue.id, "gated:0")
    x, y = queue.array(np.full(COUNT, 3.0)), queue.zeros(COUNT, "f8")
    runtime.parts.residency._ledger.stores[2].capacity_nbytes = 2 * NBYTES - 1
    fill(queue, 50, x, y)
    with pytest.raises(InvalidRequest, match="stays on gated:0: the task of .* needs"):
        migrate(client, queue.id, "gated:1")
    queue.synchronize(TIMEOUT_S)
    assert (y.numpy() == 3).all()


def move_up_to(client: Client, queue: str, gate: Gate, phase: str) -> threading.Thread:
    """Move a queue until a move waits in a phase: on a busy machine there may be no time to copy ahead."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        there = "gated:1" if place(client, queue) == "gated:0" else "gated:0"
        gate.close(phase)

        def move(there: str = there) -> None:
            with contextlib.suppress(InvalidRequest):
                migrate(client, queue, there)

        thread = threading.Thread(target=move)
        thread.start()
        while thread.is_alive() or gate.reached.is_set():
            if gate.reached.wait(0.01):
                return thread
        assert time.monotonic() < deadline, f"no move came to the phase {phase!r}"


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_killed_in_any_phase_of_a_move_leaves_nothing_and_hurts_nobody(
    client: Client, runtime: Runtime, tmp_path: Path, phase: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, str(APPLICATION), str(tmp_path / "socket"), "about_to_move"],
        stdout=subprocess.PIPE,
        text=True,
    )
    gate = GatedDevice.gate
    try:
        assert process.stdout is not None
        with process.stdout:
            queue = process.stdout.readline().split()[-1]
        thread = move_up_to(client, queue, gate, phase)
    finally:
        process.kill()
        process.wait()
    until(lambda: len(runtime.parts.sessions) == 1)
    gate.open.set()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    until(lambda: memory(runtime) == [(0, 0), (0, 0)])
    for device in runtime.parts.devices:
        assert isinstance(device, GatedDevice)
        assert device._pages is not None
        assert device._pages.used_nbytes == 0
    for name in client.devices:
        x = client.queue(device=name).array(np.arange(8.0))
        client.queue(device=name).submit("double", [x], [x]).wait(TIMEOUT_S)
        assert (x.numpy() == 2 * np.arange(8.0)).all()


def test_a_buffer_that_is_freed_while_it_is_copied_ahead_keeps_its_place_until_then(
    client: Client, runtime: Runtime
) -> None:
    queue, other = client.queue(), client.queue(device="gated:0")
    migrate(client, queue.id, "gated:0")
    x, y = queue.array(np.full(COUNT, 3.0)), queue.zeros(COUNT, "f8")
    fill(queue, 1, x, y)
    queue.synchronize(TIMEOUT_S)
    queue.submit("sleep", [y], [y], seconds=0.5)  # so long there is time to copy x ahead
    fill(queue, 20, x, y)
    gate = GatedDevice.gate
    gate.close("prepare")
    mover = threading.Thread(target=lambda: migrate(client, queue.id, "gated:1"))
    mover.start()
    assert gate.reached.wait(TIMEOUT_S)
    freeing = threading.Thread(target=lambda: (x.close(), y.close(), queue.synchronize(TIMEOUT_S)))
    freeing.start()
    freeing.join(0.2)
    gate.open.set()
    for thread in (mover, freeing):
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    fresh = [other.array(np.full(COUNT, float(number))) for number in range(4)]
    for number, buffer in enumerate(fresh):
        other.submit("double", [buffer], [buffer]).wait(TIMEOUT_S)
        assert (buffer.numpy() == 2 * number).all()
