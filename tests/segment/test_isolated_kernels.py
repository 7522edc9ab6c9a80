"""Kernels in worker processes: they crash, hang and misbehave, and only their own task hears of it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.client import Client, Queue
from polymux.core.dtype import DType
from polymux.core.errors import (
    InvalidRequest,
    KernelCrashed,
    KernelFailed,
    OutputTooSmall,
    TaskFailed,
    UnknownKernel,
)
from polymux.core.implementation import NativeFunction, OpenCLSource, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_range import OpenCLRange
from tests.segment.server_process import ServerProcess, until

FOLDER = Path(__file__).parent
X_TO_Y = (BufferParam("x"),), (BufferParam("y"),)
Function = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("server"),
        *("--device", "cpu", "--device", "cpu:0,memory_nbytes=16MiB,streams=1"),
        *("--kernels", str(FOLDER / "kernels_of_operator.py")),
        *("--isolated-kernels", str(FOLDER / "crashing_kernels.py")),
    ) as made:
        yield made


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with server.connect() as made:
        yield made


@pytest.fixture(params=["cpu:0", "cpu:1"])
def queue(client: Client, request: pytest.FixtureRequest) -> Queue:
    return client.queue(device=request.param)


def call(client: Client, queue: Queue, name: str, function: Function, x: Any = (1.0, 2.0)) -> Any:
    client.register(KernelSpec(name, *X_TO_Y), PythonFunction(function))
    given = queue.array(np.asarray(x))
    made = queue.zeros(given.shape, given.dtype)
    queue.submit(name, [given], [made]).wait(30)
    return made.numpy().tolist()


def test_a_kernel_of_an_application_runs_in_a_process_of_its_own(
    client: Client, queue: Queue, server: ServerProcess
) -> None:
    def where(x: Any, y: Any) -> None:
        y[...] = x + os.getpid()

    pid = call(client, queue, "where", where, (0.0,))[0]
    assert pid not in (os.getpid(), server.pid)
    assert int(pid) in server.children()
    client.close()
    until(lambda: not server.children())


def test_its_process_is_kept_for_the_next_task(client: Client, queue: Queue) -> None:
    state: list[int] = []

    def count(x: Any, y: Any) -> None:
        state.append(1)
        y[...] = len(state) + 0 * os.getpid()

    call(client, queue, "count", count)
    x, y = queue.zeros(2, "f8"), queue.zeros(2, "f8")
    queue.submit("count", [x], [y]).wait(30)
    assert y.numpy()[0] == 2
    assert state == []


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGFPE])
def test_a_crash_is_an_error_with_the_signals_name_and_the_next_task_has_a_new_process(
    client: Client, queue: Queue, number: signal.Signals
) -> None:
    def crash(x: Any, y: Any) -> None:
        os.kill(os.getpid(), int(x[0]))

    with pytest.raises(KernelCrashed, match=number.name):
        call(client, queue, "crash", crash, (float(number),))
    assert call(client, queue, "copy_it", lambda x, y: y.__setitem__(..., x), (7.0,)) == [7.0]


def test_a_real_segmentation_fault_is_an_error(client: Client, queue: Queue) -> None:
    with pytest.raises(KernelCrashed, match="'segv' on cpu:.: its worker process was killed by SIGSEGV"):
        call(client, queue, "segv", lambda x, y: ctypes.string_at(0))


def test_a_crash_costs_other_applications_nothing(server: ServerProcess, client: Client) -> None:
    queue = client.queue(device="cpu:0")
    with server.connect("other") as other:
        its_queue = other.queue(device="cpu:0")
        x, y = its_queue.array(np.arange(100.0)), its_queue.zeros(100, "f8")
        tasks = [its_queue.submit("double", [x], [y]) for _ in range(200)]
        for _ in range(3):
            with pytest.raises(KernelCrashed):
                call(client, queue, "segv", lambda x, y: ctypes.string_at(0))
        for task in tasks:
            task.wait(30)
        assert (y.numpy() == 2 * np.arange(100.0)).all()


def test_a_process_that_exits_is_an_error_with_its_code(client: Client, queue: Queue) -> None:
    with pytest.raises(KernelCrashed, match="exit code 3"):
        call(client, queue, "leave", lambda x, y: os._exit(3))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, y: 1 / 0, "ZeroDivisionError"),
        (lambda x, y: sys.exit(3), "SystemExit"),
        (lambda x, y: [(-1,)], "negative"),
        (lambda x, y: [(1, 2), (3,)], "2 shapes for 1 output"),
    ],
)
def test_a_kernel_that_fails_is_an_error_and_its_process_lives(
    client: Client, queue: Queue, function: Function, said: str
) -> None:
    with pytest.raises(KernelFailed, match=said):
        call(client, queue, "fail", function)


def test_a_result_that_is_too_large_for_its_buffer_is_refused(client: Client, queue: Queue) -> None:
    with pytest.raises(OutputTooSmall):
        call(client, queue, "grow", lambda x, y: [(10**6,)])


def test_a_result_may_be_smaller_than_its_buffer(client: Client, queue: Queue) -> None:
    def half(x: Any, y: Any) -> list[tuple[int, ...]]:
        y[: x.size // 2] = x[: x.size // 2]
        return [(x.size // 2,)]

    assert call(client, queue, "half", half, (1.0, 2.0, 3.0, 4.0)) == [1.0, 2.0]


def test_what_cannot_be_loaded_is_an_error_of_the_task(client: Client, queue: Queue) -> None:
    spec = KernelSpec("nowhere", *X_TO_Y)
    client.register(spec, NativeFunction("/nowhere/libnothing.so", "nothing"))
    x, y = queue.zeros(2, "f8"), queue.zeros(2, "f8")
    with pytest.raises(KernelFailed, match="/nowhere/libnothing.so does not exist"):
        queue.submit("nowhere", [x], [y]).wait(30)


def test_scalars_reach_an_isolated_kernel(client: Client, queue: Queue) -> None:
    def scale(x: Any, y: Any, a: float) -> None:
        y[...] = a * x

    spec = KernelSpec("scale", *X_TO_Y, (ScalarParam("a", DType.F64),))
    client.register(spec, PythonFunction(scale))
    x, y = queue.array(np.ones(3)), queue.zeros(3, "f8")
    queue.submit("scale", [x], [y], a=2.5).wait(30)
    assert y.numpy().tolist() == [2.5] * 3


def test_a_module_beside_the_application_is_found(
    client: Client, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "neighbour_of_test.py").write_text("def add_one(x, y):\n    y[...] = x + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import neighbour_of_test  # type: ignore[import-not-found]

    assert call(client, queue, "add_one", neighbour_of_test.add_one, (1.0,)) == [2.0]


def test_a_kernel_is_visible_to_its_own_application_only(server: ServerProcess, client: Client) -> None:
    queue = client.queue()
    call(client, queue, "mine", lambda x, y: None)
    with server.connect("other") as other, pytest.raises(UnknownKernel, match="'mine'"):
        other.kernel_spec("mine")


def test_the_number_of_another_applications_kernel_is_unknown(server: ServerProcess, client: Client) -> None:
    spec = KernelSpec("mine", *X_TO_Y)
    client.register(spec, PythonFunction(lambda x, y: None))
    number = int(client.request("kernel", {"name": "mine"})[0]["kernel_id"])
    with server.connect("other") as other:
        queue = other.queue(device="cpu:0")
        other.define_kernel("stolen", number, 1, 1, False, [0, 0], [], b"")
        x, y = queue.zeros(2, "f8"), queue.zeros(2, "f8")
        with pytest.raises(UnknownKernel, match=str(number)):
            queue.submit("stolen", [x], [y]).wait(10)


def test_a_kernel_can_be_replaced_and_unregistered(client: Client, queue: Queue) -> None:
    assert call(client, queue, "k", lambda x, y: y.__setitem__(..., 1)) == [1.0, 1.0]
    assert call(client, queue, "k", lambda x, y: y.__setitem__(..., 2)) == [2.0, 2.0]
    client.unregister("k")
    with pytest.raises(TaskFailed):
        queue.submit("k", [queue.zeros(1, "f8")], [queue.zeros(1, "f8")]).wait(10)
    with pytest.raises(InvalidRequest, match="no kernel 'k'"):
        client.request("unregister", {"name": "k"})


def test_the_server_never_unpickles_what_an_application_sends(client: Client, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "unpickled",))

    with pytest.raises(TaskFailed, match="no implementation|Path|NoneType"):
        fields = {"spec": KernelSpec("trap", *X_TO_Y).to_text(), "api": "cpu", "isolate": "1"}
        import base64

        import cloudpickle

        fields["implementation"] = base64.b64encode(cloudpickle.dumps(Trap())).decode()
        client.request("register", fields)
        assert not (tmp_path / "unpickled").exists()
        queue = client.queue(device="cpu:0")
        queue.submit("trap", [queue.zeros(1, "f8")], [queue.zeros(1, "f8")]).wait(30)


def test_other_queues_of_a_stream_go_on_while_a_process_starts(server: ServerProcess, client: Client) -> None:
    slow_import = "import time; time.sleep(3)"

    def slow(x: Any, y: Any) -> None:
        y[...] = x

    class Slow:
        def __reduce__(self) -> Any:
            return (exec, (slow_import,))

    queues = [client.queue(device="cpu:1"), client.queue(device="cpu:1")]  # it has one stream
    x, y = queues[0].zeros(2, "f8"), queues[0].zeros(2, "f8")
    client.register(KernelSpec("slow", *X_TO_Y), PythonFunction(_with_extra(slow, Slow())))
    waiting = queues[0].submit("slow", [x], [y])
    a, b = queues[1].array(np.ones(2)), queues[1].zeros(2, "f8")
    for _ in range(50):
        queues[1].submit("double", [a], [b]).wait(30)
    assert not waiting.done()
    waiting.wait(30)


def _with_extra(function: Function, extra: object) -> Function:
    """A function whose pickle holds an object that takes long to load."""

    def call(x: Any, y: Any, extra: object = extra) -> None:
        function(x, y)

    return call


def test_an_operators_isolated_kernels_crash_in_the_applications_process(
    server: ServerProcess, client: Client, queue: Queue
) -> None:
    x, y = queue.zeros(2, "f8"), queue.zeros(2, "f8")
    with pytest.raises(KernelCrashed, match="SIGSEGV"):
        queue.submit("operator_segfault", [x], [y]).wait(30)
    queue.submit("operator_pid", [x], [y]).wait(30)
    assert int(y.numpy()[0]) in server.children()


def test_a_native_kernel_of_an_application_crashes_alone(
    client: Client, queue: Queue, tmp_path: Path
) -> None:
    source = tmp_path / "k.c"
    source.write_text(
        '#include "polymux.h"\n'
        "uint32_t polymux_kernel_library_abi(void) { return POLYMUX_KERNEL_ABI; }\n"
        "int good(polymux_kernel_call *c) {\n"
        "  const double *x = c->buffers[0].data; double *y = c->buffers[1].data;\n"
        "  for (int64_t i = 0; i < c->buffers[0].shape[0]; ++i) y[i] = x[i] + 1;\n"
        "  return 0;\n}\n"
        "int bad(polymux_kernel_call *c) { (void)c; *(volatile int *)0 = 1; return 0; }\n"
    )
    import subprocess

    import polymux

    include = Path(polymux.__file__).parent / "include"
    library = tmp_path / "libk.so"
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{include}", "-o", library, source], check=True)
    for name in ("good", "bad"):
        client.register(KernelSpec(name, *X_TO_Y), NativeFunction(str(library), name))
    x, y = queue.array(np.arange(4.0)), queue.zeros(4, "f8")
    with pytest.raises(KernelCrashed, match="SIGSEGV"):
        queue.submit("bad", [x], [y]).wait(30)
    queue.submit("good", [x], [y]).wait(30)
    assert y.numpy().tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_worker_process_ends_with_the_server_whatever_it_computes(tmp_path: Path) -> None:
    def spin(x: Any, y: Any) -> None:
        while True:
            pass

    with ServerProcess(tmp_path, "--device", "cpu") as server:
        client = server.connect()
        queue = client.queue()
        client.register(KernelSpec("spin", *X_TO_Y), PythonFunction(spin))
        queue.submit("spin", [queue.zeros(1, "f8")], [queue.zeros(1, "f8")])
        until(lambda: bool(server.children()))
        worker = server.children()[0]
        time.sleep(0)
        server.kill()
        until(lambda: not os.path.exists(f"/proc/{worker}") or _is_zombie(worker))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_an_opencl_kernel_of_an_application_runs_in_its_process(tmp_path: Path) -> None:
    pytest.importorskip("pyopencl")
    with ServerProcess(tmp_path, "--device", "cpu", "--device", "opencl:0") as server:
        with server.connect() as client:
            source = "__kernel void triple(__global const float *x, __global float *y) {\
                size_t i = get_global_id(0); y[i] = 3 * x[i]; }"
            f4 = (DType.F32,)
            spec = KernelSpec("triple", (BufferParam("x", f4),), (BufferParam("y", f4),))
            plan = OpenCLRange("triple", ("x.size",))
            client.register(spec, OpenCLSource(source, plan))
            queue = client.queue()
            x, y = queue.array(np.arange(16, dtype="f4")), queue.zeros(16, "f4")
            queue.submit("triple", [x], [y]).wait(60)
            assert (y.numpy() == 3 * np.arange(16)).all()
            assert len(server.children()) == 1
