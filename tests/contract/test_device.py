"""Every device that this machine has keeps the contract of `polymux.device.protocol`."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from polymux.core.device_spec import Share
from polymux.core.errors import Closed, InvalidRequest
from polymux.core.implementation import NativeFunction, OpenCLBinary, OpenCLSource, PythonFunction
from polymux.core.kernel_spec import KernelSpec
from polymux.core.opencl_range import OpenCLRange
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access
from polymux.device.cores import allowed_cores
from polymux.device.protocol import Device, LaunchError, LaunchingStream, OutOfMemory
from tests.contract.device_rig import NOOP, SAXPY, Rig, failing, noop, open_all, requests, saxpy

ODD_SIZES = (0, 1, 7, 4095, 4097, (1 << 20) + 3)


@pytest.fixture(params=requests())
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    devices = open_all(request.param)
    if not devices:
        pytest.skip(f"{request.param} is not on this machine")
    yield devices[0]
    for opened in devices:
        opened.close()


@pytest.fixture
def rig(device: Device) -> Iterator[Rig]:
    rig = Rig(device)
    yield rig
    rig.free()


@pytest.fixture
def own(rig: Rig) -> Rig:
    if rig.device.spec.memory == "host":
        pytest.skip("this device works on host memory")
    return rig


def test_its_properties_make_sense(device: Device) -> None:
    spec = device.spec
    assert spec.id == f"{spec.api}:0"
    assert spec.name.strip() == spec.name != ""
    assert spec.units >= 1
    assert spec.streams >= 1
    assert spec.memory_nbytes > 0
    assert spec.apis


@pytest.mark.parametrize("nbytes", ODD_SIZES)
def test_bytes_come_back_as_they_went_in(own: Rig, nbytes: int) -> None:
    sent = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    np.testing.assert_array_equal(own.get(own.put(sent)), sent)


def test_a_copy_of_fewer_bytes_than_the_memory_has_touches_only_its_beginning(own: Rig) -> None:
    operand = own.put(np.full(100, 1, np.uint8))
    own.stream.copy_in(operand.memory, np.full(40, 2, np.uint8))
    head = np.zeros(41, np.uint8)
    own.stream.copy_out(operand.memory, head)
    assert head.tolist() == [2] * 40 + [1]


def test_copies_begin_where_they_are_told_to_in_the_devices_memory(own: Rig) -> None:
    operand = own.put(np.arange(100, dtype=np.uint8))
    own.stream.copy_in(operand.memory, np.full(10, 255, np.uint8), 50)
    middle = np.zeros(30, np.uint8)
    own.stream.copy_out(operand.memory, middle, 40)
    assert middle.tolist() == [*range(40, 50), *[255] * 10, *range(60, 70)]


def test_memory_that_the_host_can_address_is_what_the_device_has(own: Rig) -> None:
    sent = np.arange(100, dtype=np.uint8)
    operand = own.put(sent)
    there = own.device.host_bytes(operand.memory)
    if there is None:
        assert own.device.spec.api in ("opencl", "simulated")
        return
    assert there[:100].tolist() == sent.tolist()
    there[5] = 77
    assert own.get(operand)[5] == 77


@pytest.mark.parametrize("nbytes", ODD_SIZES)
def test_peers_copy_from_each_other(own: Rig, request: pytest.FixtureRequest, nbytes: int) -> None:
    """A second opening of the same devices; with OpenCL they are strangers then, since a context is another one."""
    others = open_all(request.node.callspec.params["device"])
    try:
        other = Rig(others[0])
        sent = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
        source, target = other.put(sent), own.put(np.zeros(nbytes + 3, np.uint8))
        assert own.device.is_peer(others[0]) == (own.device.spec.api != "opencl")
        if own.device.is_peer(others[0]):
            own.stream.copy_peer(target.memory, others[0], source.memory, nbytes)
            np.testing.assert_array_equal(own.get(target), [*sent, 0, 0, 0])
        other.free()
    finally:
        for opened in others:
            opened.close()


@pytest.mark.parametrize("name", ["cpu", "simulated"])
def test_a_device_of_another_kind_is_no_peer(name: str) -> None:
    cores = allowed_cores()
    mine, *others = [open_all(request)[0] for request in (f"cpu:{cores[0]}", "cpu", "simulated")]
    device = mine if name == "cpu" else others[1]
    stranger = others[1] if name == "cpu" else mine
    memory, source = device.allocate(8), stranger.allocate(8)
    assert not device.is_peer(stranger)
    assert not device.is_peer(
        others[0]
    )  # works on the host's memory: the host's bytes are where its data are
    with pytest.raises(InvalidRequest, match=r"is no .* peer"):
        device.open_stream(Share()).copy_peer(memory, stranger, source, 8)
    for opened in (mine, *others):
        opened.close()


def test_fresh_memory_is_zero_even_where_somebody_else_has_written_before(own: Rig) -> None:
    for nbytes in (5000, 3 << 20):
        secret = own.device.allocate(nbytes)
        own.stream.copy_in(secret, np.full(nbytes, 255, np.uint8))
        own.device.free(secret)
        fresh = own.device.allocate(nbytes)
        seen = np.full(nbytes, 7, np.uint8)
        own.stream.copy_out(fresh, seen)
        own.device.free(fresh)
        assert not seen.any()


def test_memory_that_it_does_not_have_is_refused_with_the_sizes_and_costs_nothing(own: Rig) -> None:
    capacity = own.device.spec.memory_nbytes
    held = own.device.allocate(1000)
    for asked in (capacity + 1, capacity, capacity - 999):
        with pytest.raises(OutOfMemory, match=rf"{asked} bytes.*{capacity - 1000} of {capacity}") as failure:
            own.device.allocate(asked)
        assert failure.value.code is TaskStatus.OUT_OF_MEMORY
        assert isinstance(failure.value, MemoryError)
    own.device.free(held)
    for _ in range(100):
        own.device.free(own.device.allocate(1 << 16))


def test_memory_is_given_back_once_only(own: Rig) -> None:
    memory = own.device.allocate(64)
    own.device.free(memory)
    with pytest.raises(ValueError, match="no live allocation"):
        own.device.free(memory)


def test_a_device_on_host_memory_has_none_of_its_own(rig: Rig) -> None:
    if rig.device.spec.memory != "host":
        pytest.skip("this device has memory of its own")
    with pytest.raises(InvalidRequest, match="host memory"):
        rig.device.allocate(1)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_kernel_that_does_nothing_takes_any_buffers(rig: Rig, count: int) -> None:
    operands = [rig.put(np.zeros(5, np.float32)) for _ in range(count)]
    assert rig.run(NOOP, noop(rig.api), operands) is None


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 100_003])
def test_a_kernel_computes_on_any_number_of_elements(rig: Rig, n: int) -> None:
    rig.check_saxpy(n)


def test_preparing_the_same_implementation_again_is_a_look_up_until_it_is_forgotten(rig: Rig) -> None:
    implementation = saxpy(rig.api)
    prepared = rig.stream.prepare(SAXPY, implementation)
    assert rig.stream.prepare(SAXPY, implementation) is prepared
    rig.device.forget(implementation)
    assert rig.stream.prepare(SAXPY, implementation) is not prepared


def test_a_kernel_that_fails_says_so_and_the_stream_goes_on(rig: Rig) -> None:
    spec = KernelSpec("test_failing")
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"always fails|undeclared") as failure:
            rig.run(spec, failing(rig.api), [])
        assert failure.value.code is TaskStatus.KERNEL_FAILED
    rig.check_saxpy(10)


def test_a_kernel_that_refuses_its_arguments_is_a_bad_argument(rig: Rig) -> None:
    def refuse(*values: object, **scalars: object) -> None:
        raise InvalidRequest("x must be square")

    implementation = PythonFunction(refuse) if rig.api == "cpu" else OpenCLSource("", refuse)
    with pytest.raises(LaunchError, match="x must be square") as failure:
        rig.run(KernelSpec("refusing"), implementation, [])
    assert failure.value.code is TaskStatus.BAD_ARGUMENT


def test_an_implementation_for_another_api_is_refused_by_name(rig: Rig) -> None:
    foreign = (
        PythonFunction(print)
        if rig.api == "opencl"
        else OpenCLBinary("x.bin", ("f",), OpenCLRange("f", (1,)))
    )
    with pytest.raises(
        LaunchError, match=f"an implementation for {foreign.api}; {rig.device.spec.id} runs"
    ) as failure:
        rig.stream.prepare(KernelSpec("foreign"), foreign)
    assert failure.value.code is TaskStatus.NO_DEVICE


def test_a_missing_kernel_library_is_an_error_with_its_path(rig: Rig) -> None:
    if "cpu" not in rig.device.spec.apis:
        pytest.skip("this device runs no native functions")
    with pytest.raises(LaunchError, match=r"/nowhere/kernels\.so does not exist"):
        rig.stream.prepare(KernelSpec("native"), NativeFunction("/nowhere/kernels.so", "f"))


@pytest.mark.parametrize("units", [(), (0, 0), (-1,), (10_000,), (0, 10_000)])
def test_a_share_that_cannot_be_is_refused(device: Device, units: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="share"):
        device.open_stream(Share(units))


def test_every_single_unit_and_all_of_them_make_a_share_that_computes(device: Device) -> None:
    if not device.spec.partitionable:
        pytest.skip("this device has no shares")
    shares = [Share((unit,)) for unit in range(device.spec.units)]
    for share in (*shares, Share(tuple(range(device.spec.units)))):
        rig = Rig(device, share)
        assert rig.stream.share == share
        rig.check_saxpy(1000)
        rig.free()
        rig.stream.close()


def test_streams_of_one_device_compute_at_the_same_time_without_mixing_their_arguments(
    device: Device,
) -> None:
    rigs = [Rig(device) for _ in range(3)]
    failures: list[BaseException] = []

    def work(rig: Rig, a: float) -> None:
        try:
            rig.stream.bind_thread()
            for n in (10, 1000, 5):
                rig.check_saxpy(n, a)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rig, 1.0 + i)) for i, rig in enumerate(rigs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    for rig in rigs:
        rig.free()


def test_repeated_launches_use_the_buffers_that_they_are_given(rig: Rig) -> None:
    x, y = rig.put(np.ones(4, np.float32)), rig.put(np.zeros(4, np.float32), Access.READ | Access.WRITE)
    implementation = saxpy(rig.api)
    for _ in range(5):
        rig.run(SAXPY, implementation, [x, y, y], a=1.0)
    assert rig.get(y).tolist() == [5.0] * 4


def test_closing_twice_is_fine_and_nothing_works_afterwards(device: Device) -> None:
    stream = device.open_stream(Share())
    implementation = saxpy(device.spec.apis[0])
    prepared = stream.prepare(SAXPY, implementation)
    stream.close()
    stream.close()
    with pytest.raises(Closed):
        stream.prepare(SAXPY, implementation)
    with pytest.raises(Closed):
        stream.launch(prepared, [], {"a": 1.0})
    device.close()
    device.close()
    with pytest.raises(Closed):
        device.open_stream(Share())


def test_what_it_counts_are_numbers_by_name(device: Device) -> None:
    assert all(isinstance(count, int) for count in device.counters().values())


def test_devices_that_were_opened_used_and_closed_leave_no_thread_and_no_file_open() -> None:
    def left_over() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    def cycle() -> None:
        for request in requests():
            for opened in open_all(request):
                rig = Rig(opened)
                rig.check_saxpy(100)
                rig.free()
                opened.close()

    cycle()  # drivers start their own threads once
    before = left_over()
    for _ in range(10):
        cycle()
    assert left_over() == before


def test_kernels_that_are_started_ahead_run_in_order_and_tell_when_they_have_ended(own: Rig) -> None:
    if not isinstance(own.stream, LaunchingStream):
        pytest.skip("its streams start no kernel before the one before has ended")
    x, y = own.put(np.ones(1000, np.float32)), own.put(np.zeros(1000, np.float32), Access(3))
    prepared = own.stream.prepare(SAXPY, saxpy(own.api))
    operands, scalars = [x, y, y], {"a": 1.0}
    launches = [own.stream.start(prepared, operands, scalars) for _ in range(20)]
    assert launches[-1].wait() is None
    assert all(launch.ended() for launch in launches)
    assert own.get(y).tolist() == [20.0] * 1000


def test_a_kernel_that_is_started_with_other_buffers_and_scalars_gets_those(own: Rig) -> None:
    if not isinstance(own.stream, LaunchingStream):
        pytest.skip("its streams start no kernel before the one before has ended")
    x, y, z = (own.put(np.full(64, i, np.float32), Access(3)) for i in range(1, 4))
    prepared = own.stream.prepare(SAXPY, saxpy(own.api))
    for operands, a in (
        ([x, y, z], 0.0),
        ([y, x, z], -0.0),
        ([x, y, z], 2.0),
        ([x, x, y], 3.0),
        ([x, y, z], 1.0),
    ):
        launch = own.stream.start(prepared, operands, {"a": a})
        launch.wait()
    assert own.get(y).tolist() == [4.0] * 64
    assert own.get(z).tolist() == [5.0] * 64
