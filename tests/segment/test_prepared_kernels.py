"""Kernels that are made ready on a stream beforehand, while it runs others, and let go of."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polymux.client import Client
from polymux.core.errors import Closed, InvalidRequest, ServerGone, TaskFailed, UnknownKernel
from polymux.core.implementation import OnnxModel, OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.opencl_range import OpenCLRange
from tests.segment.server_process import ServerProcess, until

KERNELS = """
from polymux.kernel import kernel

@kernel("add_one", inputs="x", outputs="y")
def add_one(x, y):
    y[...] = x + 1
"""
X_TO_Y = (BufferParam("x"),), (BufferParam("y"),)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "k.py").write_text(KERNELS)
    with ServerProcess(
        folder, "--device", "cpu,shares=nested", "--device", "cpu:0", "--kernels", str(folder / "k.py")
    ) as made:
        yield made


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with server.connect() as made:
        yield made


def write_model(file: Path, layers: int = 1, width: int = 16) -> Path:
    """Write a chain of products with twice the identity."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in ("t0", "y")]
    nodes = [helper.make_node("MatMul", [f"t{i}", f"W{i}"], [f"t{i + 1}"]) for i in range(layers)]
    nodes[-1].output[0] = "y"
    weights = [numpy_helper.from_array(2 * np.eye(width, dtype="f4"), f"W{i}") for i in range(layers)]
    graph = helper.make_graph(nodes, "double", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, str(file))
    return file


def run(client: Client, name: str, stream: str) -> list[float]:
    with client.queue(stream=stream) as queue:
        x, y = queue.array(np.arange(16, dtype="f4").reshape(1, 16)), queue.empty((1, 16), "f4")
        queue.submit(name, [x], [y]).wait(60)
        values: list[float] = y.numpy()[0].tolist()
        return values


def sessions(client: Client) -> int:
    count: int = client.status()["devices"][0]["counters"]["onnx_sessions"]
    return count


DOUBLED = [2.0 * value for value in range(16)]


@pytest.mark.parametrize("isolate", [False, True])
def test_a_prepared_model_needs_its_file_no_more_until_it_is_retired(
    client: Client, tmp_path: Path, isolate: bool
) -> None:
    path = write_model(tmp_path / "double.onnx")
    client.register(None, OnnxModel(str(path)), name="double", isolate=isolate)
    client.prepare("double", "cpu:0/0")
    client.prepare("double", "cpu:0/0")  # again costs nothing
    path.rename(tmp_path / "away.onnx")
    assert run(client, "double", "cpu:0/0") == DOUBLED
    assert run(client, "double", "cpu:0/0") == DOUBLED
    client.retire("double", "cpu:0/0")
    client.retire("double", "cpu:0/0")
    with pytest.raises(TaskFailed, match=r"double\.onnx does not exist"):
        run(client, "double", "cpu:0/0")
    (tmp_path / "away.onnx").rename(path)
    client.retire("double", "cpu:0/0")
    assert run(client, "double", "cpu:0/0") == DOUBLED


def test_a_queue_that_has_run_a_retired_kernel_loads_it_anew(client: Client, tmp_path: Path) -> None:
    path = write_model(tmp_path / "double.onnx")
    client.register(None, OnnxModel(str(path)), name="double", isolate=False)
    with client.queue(stream="cpu:0/0") as queue:
        x, y = queue.array(np.ones((1, 16), "f4")), queue.empty((1, 16), "f4")
        queue.submit("double", [x], [y]).wait(60)
        assert sessions(client) == 1
        client.retire("double", "cpu:0/0")
        assert sessions(client) == 0
        queue.submit("double", [x], [y]).wait(60)
        assert sessions(client) == 1


def test_what_is_prepared_goes_with_the_kernel_and_with_the_session(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "double.onnx")
    streams = [stream["id"] for stream in client.status()["devices"][0]["streams"]]
    with server.connect("other") as other:
        for each in (client, other):
            each.register(None, OnnxModel(str(path)), name="double", isolate=False)
            for stream in streams:
                each.prepare("double", stream)
        at_most = 1 if len(streams) == 1 else 2 * len(streams)
        assert 1 <= sessions(client) <= at_most
        client.unregister("double")
        assert sessions(client) >= 1
    until(lambda: sessions(client) == 0)


def test_a_stream_goes_on_while_a_kernel_is_made_ready_there(client: Client, tmp_path: Path) -> None:
    path = write_model(tmp_path / "large.onnx", layers=6, width=1500)
    client.register(None, OnnxModel(str(path)), name="large", isolate=False)
    done = threading.Event()

    def prepare() -> None:
        try:
            client.prepare("large", "cpu:0/0")
        finally:
            done.set()

    with client.queue(stream="cpu:0/0") as queue:
        x, y = queue.zeros(8, "f4"), queue.zeros(8, "f4")
        thread = threading.Thread(target=prepare)
        thread.start()
        ended_before = 0
        while not done.is_set():
            queue.submit("add_one", [x], [y]).wait(60)
            ended_before += not done.is_set()
        thread.join()
    assert ended_before > 10
    client.unregister("large")


def test_kernels_of_every_kind_can_be_prepared_and_retired(client: Client) -> None:
    def mine(x, y):  # type: ignore[no-untyped-def]
        y[...] = x + 1

    client.register(KernelSpec("mine", *X_TO_Y), PythonFunction(mine))
    for name in ("mine", "add_one", "saxpy"):
        client.prepare(name, "cpu:1/0")
        client.retire(name, "cpu:1/0")
        client.prepare(name, "cpu:1/0")
    with client.queue(stream="cpu:1/0") as queue:
        x, y = queue.zeros(8, "f4"), queue.zeros(8, "f4")
        for name in ("mine", "add_one"):
            queue.submit(name, [x], [y]).wait(60)
            assert y.numpy().tolist() == [1] * 8


def test_what_cannot_be_prepared_is_refused_with_the_remedy(client: Client, tmp_path: Path) -> None:
    for verb in (client.prepare, client.retire):
        with pytest.raises(UnknownKernel, match="no_such_kernel"):
            verb("no_such_kernel", "cpu:0/0")
        with pytest.raises(InvalidRequest, match=r"stream 'cpu:9/0' does not exist; the server has cpu:0/0"):
            verb("saxpy", "cpu:9/0")
    source = OpenCLSource("", OpenCLRange("k", (1,)))
    client.register(KernelSpec("elsewhere", *X_TO_Y), source)
    with pytest.raises(InvalidRequest, match="has no implementation for cpu:0, but for no device here"):
        client.prepare("elsewhere", "cpu:0/0")
    path = write_model(tmp_path / "gone.onnx")
    client.register(None, OnnxModel(str(path)), name="gone", isolate=False)
    path.unlink()
    with pytest.raises(
        InvalidRequest, match=r"'gone' cannot be made ready on cpu:0/0: model .*does not exist"
    ):
        client.prepare("gone", "cpu:0/0")


def test_requests_of_other_threads_are_answered_while_one_waits(client: Client, tmp_path: Path) -> None:
    path = write_model(tmp_path / "large.onnx", layers=6, width=1500)
    client.register(None, OnnxModel(str(path)), name="large", isolate=False)
    done = threading.Event()
    answered = []

    def prepare() -> None:
        client.prepare("large", "cpu:0/0")
        done.set()

    def ask(name: str) -> None:
        while not done.is_set():
            assert f'"{name}"' in client.request("kernel", {"name": name})[0]["spec"]
            answered.append(name)

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("saxpy", "add_one", "copy")]
    for thread in (*threads, preparing := threading.Thread(target=prepare)):
        thread.start()
    preparing.join(60)
    assert done.is_set()
    for thread in threads:
        thread.join(60)
    assert set(answered) == {"saxpy", "add_one", "copy"}
    client.unregister("large")


def test_a_client_that_goes_while_its_model_is_loaded_leaves_nothing(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "large.onnx", layers=6, width=1500)

    def prepare(hasty: Client) -> None:
        with contextlib.suppress(Closed, ServerGone, InvalidRequest):  # its connection ends meanwhile
            hasty.prepare("large", "cpu:0/0")

    for _ in range(3):
        with server.connect("hasty") as hasty:
            hasty.register(None, OnnxModel(str(path)), name="large", isolate=False)
            thread = threading.Thread(target=prepare, args=(hasty,))
            thread.start()
        thread.join(60)
        assert not thread.is_alive()
    until(lambda: sessions(client) == 0)
    assert [item["name"] for item in client.status()["applications"]] == ["test"]
