"""Tasks that cannot be: each ends with a named error, the queue goes on, and nothing waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.client import Client, Queue
from polymux.core.errors import (
    BadArgument,
    InvalidRequest,
    KernelFailed,
    NoDevice,
    OutOfDeviceMemory,
    OutputTooSmall,
    TaskFailed,
    UnknownKernel,
)
from tests.segment.server_process import ServerProcess

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
OPENCL_ONLY = """
[[kernel]]
name = "only_opencl"
inputs = ["x"]
outputs = ["y"]
[kernel.opencl]
source = "k.cl"
global_size = ["y.size"]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "k.toml").write_text(OPENCL_ONLY)
    (folder / "k.cl").write_text("__kernel void only_opencl(__global const uchar *x, __global uchar *y) { }")
    with ServerProcess(
        folder,
        *("--device", "cpu", "--device", "cpu:0,memory_nbytes=1MiB"),
        *("--kernels", str(KERNELS), "--kernels", str(folder / "k.toml")),
    ) as made:
        yield made


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with server.connect("bad") as made:
        yield made


@pytest.fixture(params=["cpu:0", "cpu:1"])
def queue(client: Client, request: pytest.FixtureRequest) -> Iterator[Queue]:
    made = client.queue(device=request.param)
    yield made
    x, y = made.array(np.arange(4.0)), made.zeros(4, "f8")
    made.submit("double", [x], [y]).wait(20)  # whatever came before, the queue goes on
    assert y.numpy().tolist() == [0.0, 2.0, 4.0, 6.0]


def fail(queue: Queue, kernel: str, n_inputs: int = 1, n_outputs: int = 1, **scalars: Any) -> TaskFailed:
    given = [queue.zeros(8, "f8") for _ in range(n_inputs)]
    made = [queue.zeros(8, "f8") for _ in range(n_outputs)]
    error = queue.submit(kernel, given, made, **scalars).error(20)
    assert isinstance(error, TaskFailed)
    return error


@pytest.mark.parametrize(
    ("kernel", "error", "said"),
    [
        ("raise", KernelFailed, "ValueError: out of luck"),
        ("exit", KernelFailed, "SystemExit: 3"),
        ("garbage_shape", KernelFailed, "negative"),
        ("too_large", OutputTooSmall, "72"),
        ("wrong_count", KernelFailed, "2 shapes for 1 output"),
        ("lost_result", KernelFailed, "would be lost"),
    ],
)
def test_a_kernel_that_misbehaves_is_an_error_that_names_it(
    queue: Queue, kernel: str, error: type[TaskFailed], said: str
) -> None:
    failure = fail(queue, kernel)
    assert isinstance(failure, error)
    assert said in str(failure)
    assert f"kernel {kernel!r} on cpu:" in failure.message


def test_a_result_may_be_smaller_than_its_buffer(queue: Queue) -> None:
    x, y = queue.array(np.arange(8.0)), queue.zeros(8, "f8")
    queue.submit("half", [x], [y]).wait(20)
    assert y.shape == (4,)
    assert y.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_unknown_kernel_is_refused_with_names_that_are_close(queue: Queue) -> None:
    with pytest.raises(UnknownKernel, match="double"):
        queue.submit("doubl", [queue.zeros(1, "f8")], [queue.zeros(1, "f8")])


def test_descriptors_that_the_library_would_not_write_are_refused_by_the_server(
    client: Client, queue: Queue
) -> None:
    """The client's own checks are out of the way: it is told another signature."""
    number = int(client.request("kernel", {"name": "saxpy"})[0]["kernel_id"])
    wrong: list[tuple[int, int, bytes, list[int], str]] = [
        (1, 1, b"\0" * 8, [0, 0], "takes 3 buffers"),
        (2, 2, b"\0" * 8, [0, 0, 0, 0], "takes 3 buffers"),
        (2, 1, b"\0" * 4, [0, 0, 0], "a: f8"),
        (2, 1, b"", [0, 0, 0], "a: f8"),
    ]
    for at, (n_inputs, n_outputs, scalars, masks, said) in enumerate(wrong):
        client.define_kernel(f"wrong{at}", number, n_inputs, n_outputs, False, masks, [], scalars)
        failure = fail(queue, f"wrong{at}", n_inputs, n_outputs)
        assert isinstance(failure, BadArgument)
        assert said in str(failure)
    client.define_kernel("wrong_type", number, 2, 1, False, [0, 0, 0], [], b"\0" * 8)
    integers = [queue.zeros(8, "i4") for _ in range(3)]
    failure = queue.submit("wrong_type", integers[:2], integers[2:]).error(20)
    assert isinstance(failure, BadArgument)
    assert "dtype i4; it takes f4, f8" in str(failure)


def test_numbers_of_kernels_that_do_not_exist_are_unknown(client: Client, queue: Queue) -> None:
    for number in (2, 15, 4000, 4096, 2**31, 2**32 - 1):
        client.define_kernel(f"n{number}", number, 1, 1, False, [0, 0], [], b"")
        failure = fail(queue, f"n{number}")
        assert isinstance(failure, UnknownKernel)
        assert str(number) in str(failure)


def test_a_kernel_for_which_no_device_has_an_implementation_is_an_error(client: Client) -> None:
    for device in ("cpu:0", None):
        queue = client.queue(device=device)
        failure = fail(queue, "only_opencl")
        assert isinstance(failure, NoDevice)
        assert "only_opencl" in str(failure)


def test_more_than_the_device_has_fails_with_sizes_and_owners(client: Client, server: ServerProcess) -> None:
    queue = client.queue(device="cpu:1")
    with server.connect("neighbour") as neighbour:
        its_queue = neighbour.queue(device="cpu:1")
        x = its_queue.zeros(10_000, "f8")
        its_queue.submit("double", [x], [x]).wait(20)
        big, small = queue.zeros(200_000, "f8"), queue.zeros(1000, "f8")
        failure = queue.submit("double", [big], [small]).error(20)
        assert isinstance(failure, OutOfDeviceMemory)
        for word in ("1.5 MiB", "1.0 MiB", "'bad'", "'neighbour'", "cpu:1"):
            assert word in str(failure)
        its_queue.submit("double", [x], [x]).wait(20)


def test_a_device_that_does_not_exist_is_refused_with_those_that_do(client: Client) -> None:
    with pytest.raises(InvalidRequest, match=r"'gpu:7' does not exist; the server has cpu:0, cpu:1"):
        client.queue(device="gpu:7")


def test_a_queue_beyond_the_limit_is_refused_and_room_is_made_by_closing(client: Client) -> None:
    queues = []
    with pytest.raises(InvalidRequest, match="256 open queues"):
        while True:
            queues.append(client.queue(capacity=16))
    assert len(queues) == 256
    queues.pop().close()
    queues.append(client.queue(capacity=16))
    x, y = queues[-1].array(np.arange(4.0)), queues[-1].zeros(4, "f8")
    queues[-1].submit("double", [x], [y]).wait(20)
    for queue in queues:
        queue.close()


def test_a_wish_for_a_device_moves_the_queue_there(client: Client, server: ServerProcess) -> None:
    queue = client.queue()
    x, y = queue.array(np.arange(4.0)), queue.zeros(4, "f8")
    for device in ("cpu:1", "cpu:0", "cpu:1"):
        queue.submit("double", [x], [y], device=device).wait(20)
        states = {state["id"]: state for state in server.status()["queues"]}
        assert states[queue.id]["device"] == device
    assert y.numpy().tolist() == [0.0, 2.0, 4.0, 6.0]


def test_a_wish_against_the_pin_is_not_followed(client: Client) -> None:
    queue = client.queue(device="cpu:0")
    x, y = queue.array(np.arange(4.0)), queue.zeros(4, "f8")
    queue.submit("double", [x], [y], device="cpu:1").wait(20)
    assert y.numpy().tolist() == [0.0, 2.0, 4.0, 6.0]
