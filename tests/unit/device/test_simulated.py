"""A simulated device on a clock that the tests turn: how long things take, without waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polymux.core.device_spec import DeviceSpec, Share
from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access, BufferView
from polymux.device.protocol import LaunchError, Operand
from polymux.device.simulated import SimulatedDevice, WallClock
from polymux.device.simulated_model import parse_model

COPY = KernelSpec("copy", (BufferParam("x"),), (BufferParam("y"),))
TABLE = {
    "memory_nbytes": 1 << 20,
    "units": 4,
    "transfer": {"bandwidth_bytes_per_s": 1e9, "latency_ns": 100},
    "compute": {"latency_ns": 10, "bandwidth_bytes_per_s": 1e9},
    "kernels": {"count": {"operations": "n[0]", "operations_per_s": 1e9}},
}


class TurnedClock(WallClock):
    """Time passes when somebody sleeps, or when a kernel is slow."""

    def __init__(self) -> None:
        self.time_ns = 1_000_000

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until(self, end_ns: int) -> None:
        self.time_ns = max(self.time_ns, end_ns)


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def device(clock: TurnedClock) -> SimulatedDevice:
    model = parse_model("device.toml", TABLE)
    spec = DeviceSpec(DeviceId("simulated:0"), "simulated", model.name, 1 << 20, "own", 4, 1, ("cpu",), True)
    return SimulatedDevice(spec, model, clock=clock)


def operand(device: SimulatedDevice, slot: int, nbytes: int) -> Operand:
    view = BufferView(slot, DType.U8, (nbytes,), nbytes, Access.READ | Access.WRITE, 0)
    return Operand(view, memory=device.allocate(nbytes))


def test_a_copy_takes_latency_and_size_and_each_direction_has_a_bus(
    device: SimulatedDevice, clock: TurnedClock
) -> None:
    stream = device.open_stream(Share())
    memory, host = device.allocate(1000), np.arange(1000, dtype=np.uint8)
    start_ns = clock.time_ns
    stream.copy_in(memory, host)
    assert clock.time_ns - start_ns == 100 + 1000
    back = np.zeros(1000, np.uint8)
    stream.copy_out(memory, back)
    assert clock.time_ns - start_ns == 2 * (100 + 1000)
    assert back.tolist() == host.tolist()


def test_a_copy_between_two_devices_takes_both_buses_and_the_time_of_the_slower_one(
    device: SimulatedDevice, clock: TurnedClock
) -> None:
    slow = parse_model("slow.toml", TABLE | {"transfer": {"bandwidth_bytes_per_s": 0.5e9, "latency_ns": 100}})
    spec = DeviceSpec(DeviceId("simulated:1"), "simulated", slow.name, 1 << 20, "own", 4, 1, ("cpu",), True)
    peer = SimulatedDevice(spec, slow, clock=clock)
    memory, source = device.allocate(1000), peer.allocate(1000)
    source[:] = 7
    start_ns = clock.time_ns
    device.open_stream(Share()).copy_peer(memory, peer, source, 1000)
    assert clock.time_ns - start_ns == 100 + 2000
    assert memory.tolist() == [7] * 1000
    begun = TurnedClock()
    begun.time_ns = start_ns
    device._clock = peer._clock = begun  # another copy that begins with the first finds both buses taken
    device.open_stream(Share()).copy_in(memory, np.zeros(1000, np.uint8))
    assert begun.time_ns == start_ns + 2 * (100 + 1000)
    begun.time_ns = start_ns
    peer.open_stream(Share()).copy_out(source, np.zeros(1000, np.uint8))
    assert begun.time_ns == start_ns + 2 * (100 + 2000)


def test_a_kernel_computes_the_real_result_and_takes_the_time_of_its_bytes(
    device: SimulatedDevice, clock: TurnedClock
) -> None:
    stream = device.open_stream(Share())
    x, y = operand(device, 1, 300), operand(device, 2, 300)
    stream.copy_in(x.memory, np.full(300, 9, np.uint8))
    start_ns = clock.time_ns
    prepared = stream.prepare(COPY, PythonFunction(np.positive))
    stream.launch(prepared, [x, y], {})
    assert clock.time_ns - start_ns == 10 + 600
    assert y.memory is not None
    assert y.memory.tolist() == [9] * 300


def test_a_buffer_that_is_read_and_written_counts_once(device: SimulatedDevice, clock: TurnedClock) -> None:
    stream = device.open_stream(Share())
    x = operand(device, 1, 300)
    start_ns = clock.time_ns
    stream.launch(stream.prepare(COPY, PythonFunction(np.positive)), [x, x], {})
    assert clock.time_ns - start_ns == 10 + 300


def test_a_share_takes_longer_by_as_much_as_it_is_smaller(
    device: SimulatedDevice, clock: TurnedClock
) -> None:
    stream = device.open_stream(Share((3,)))
    start_ns = clock.time_ns
    stream.launch(
        stream.prepare(COPY, PythonFunction(np.positive)),
        [operand(device, 1, 300), operand(device, 2, 300)],
        {},
    )
    assert clock.time_ns - start_ns == 10 + 4 * 600


def test_a_kernel_that_the_host_computes_more_slowly_ends_when_the_host_is_done(
    device: SimulatedDevice, clock: TurnedClock
) -> None:
    def slow(x: Any, y: Any) -> None:
        clock.time_ns += 5_000_000

    stream = device.open_stream(Share())
    start_ns = clock.time_ns
    stream.launch(
        stream.prepare(COPY, PythonFunction(slow)), [operand(device, 1, 8), operand(device, 2, 8)], {}
    )
    assert clock.time_ns - start_ns == 5_000_000


def test_streams_of_the_whole_device_do_not_make_it_faster_than_told(
    device: SimulatedDevice, clock: TurnedClock
) -> None:
    first, second = device.open_stream(Share()), device.open_stream(Share())
    x, y = operand(device, 1, 300), operand(device, 2, 300)
    start_ns = clock.time_ns

    def during(a: Any, b: Any) -> None:
        if first_is_running.pop():  # another stream launches while this one computes
            second.launch(second.prepare(COPY, kernel), [x, y], {})

    kernel = PythonFunction(during)
    first_is_running = [False, True]
    first.launch(first.prepare(COPY, kernel), [x, y], {})
    assert clock.time_ns - start_ns == 2 * (10 + 600)


def test_streams_of_disjoint_shares_compute_side_by_side(device: SimulatedDevice, clock: TurnedClock) -> None:
    first, second = device.open_stream(Share((0, 1))), device.open_stream(Share((2, 3)))
    x, y = operand(device, 1, 300), operand(device, 2, 300)
    start_ns = clock.time_ns

    def during(a: Any, b: Any) -> None:
        if first_is_running.pop():
            second.launch(second.prepare(COPY, kernel), [x, y], {})

    kernel = PythonFunction(during)
    first_is_running = [False, True]
    first.launch(first.prepare(COPY, kernel), [x, y], {})
    assert clock.time_ns - start_ns == 10 + 2 * 600


def test_a_model_that_does_not_fit_the_kernel_is_an_error_of_the_device(device: SimulatedDevice) -> None:
    stream = device.open_stream(Share())
    prepared = stream.prepare(KernelSpec("count", variadic=True), PythonFunction(lambda: None))
    with pytest.raises(
        LaunchError, match=r"time that it takes.*'n\[0\]' cannot be computed from nothing"
    ) as failure:
        stream.launch(prepared, [], {})
    assert failure.value.code is TaskStatus.DEVICE_FAILED


@pytest.mark.parametrize("units", [(), (4,), (0, 0), (-1,)])
def test_units_that_it_does_not_have_are_refused(device: SimulatedDevice, units: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="one or more of 0 to 3"):
        device.open_stream(Share(units))
