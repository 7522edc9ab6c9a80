"""Whatever applications do for long, the server's memory, descriptors and threads stay as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.client import Client
from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from tests.segment.server_process import ServerProcess, until

KERNELS = Path(__file__).with_name("kernels_of_operator.py")
X_TO_Y = (BufferParam("x"),), (BufferParam("y"),)
SLACK_NBYTES = 1 << 20
"""What an allocator keeps or gives back by chance; the leaks looked for are larger after so many repetitions."""
Use = Callable[[ServerProcess, int], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    devices = ("--device", "cpu", "--device", "cpu:0,memory_nbytes=1MiB,streams=1")
    with ServerProcess(tmp_path_factory.mktemp("server"), *devices, "--kernels", str(KERNELS)) as made:
        yield made


def native_tasks(server: ServerProcess, count: int) -> None:
    with server.connect() as client, client.queue(device="cpu:0") as queue:
        x = queue.zeros(16)
        for _ in range(count):
            queue.submit("noop", [x], [x])


def python_tasks(server: ServerProcess, count: int) -> None:
    with server.connect() as client, client.queue(device="cpu:0") as queue:
        x, y = queue.zeros(16), queue.zeros(16)
        for _ in range(count):
            queue.submit("double", [x], [y])


def device_tasks(server: ServerProcess, count: int) -> None:
    with server.connect() as client, client.queue(device="cpu:1") as queue:
        x, y = queue.zeros(16), queue.zeros(16)
        for number in range(count):
            queue.submit("saxpy", [x, x], [y], a=float(number))


def failing_tasks(server: ServerProcess, count: int) -> None:
    with server.connect() as client:
        queues = [client.queue(device=device) for device in client.devices]
        for queue in queues:
            x, y = queue.zeros(16), queue.zeros(17)
            for number in range(count):
                task = queue.submit(("raise", "copy", "garbage_shape")[number % 3], [x], [y])
                if number % 500 == 0:
                    task.error()
            queue.barrier().wait()


def changing_buffers(server: ServerProcess, count: int) -> None:
    with server.connect() as client, client.queue(device="cpu:1") as queue:
        for number in range(count):
            x = queue.array(np.full(100 + number % 5000, number, "f4"))
            queue.submit("copy", [x], [queue.empty(x.shape)])


def spilled_buffers(server: ServerProcess, count: int) -> None:
    with server.connect() as client, client.queue(device="cpu:1") as queue:
        buffers = [queue.zeros(100_000) for _ in range(5)]
        for number in range(count):
            queue.submit("copy", [buffers[number % 5]], [buffers[(number + 1) % 5]])


def clients(server: ServerProcess, count: int) -> None:
    for _ in range(count):
        with server.connect() as client:
            for device in client.devices:
                queue = client.queue(device=device)
                queue.submit("copy", [queue.zeros(1000)], [queue.empty(1000)]).wait(30)


def queues(server: ServerProcess, count: int) -> None:
    with server.connect() as client:
        for number in range(count):
            queue = client.queue(f"queue {number}", capacity=16)
            queue.submit("noop")
            queue.close()


def refused_requests(server: ServerProcess, count: int) -> None:
    with server.connect() as client:
        for number in range(count):
            for operation, fields in (("kernel", {"name": f"k{number}"}), (f"operation_{number}", {})):
                with pytest.raises(Exception, match=str(number)):
                    client.request(operation, fields)
            with pytest.raises(InvalidRequest):
                client.queue(device=f"cpu:{number + 2}")


def registered_kernels(server: ServerProcess, count: int) -> None:
    def register(client: Client, number: int, isolate: bool) -> str:
        name = f"kernel_{number}"
        spec = KernelSpec(name, *X_TO_Y, (ScalarParam(f"s{number}", DType.F64, 0.0),))
        client.register(spec, PythonFunction(_kernel), isolate=isolate)
        return name

    with server.connect() as client, client.queue(device="cpu:0") as queue:
        x, y = queue.zeros(16), queue.zeros(16)
        for number in range(count):
            name = register(client, number, isolate=False)
            queue.submit(name, [x], [y]).wait(30)
            client.unregister(name)
            client.unregister(register(client, number, isolate=True))


def replaced_kernels(server: ServerProcess, count: int) -> None:
    """Register another function of 10 kB under one name again and again."""
    with server.connect() as client, client.queue(device="cpu:0") as queue:
        x, y = queue.zeros(16), queue.zeros(16)
        for number in range(count):

            def kernel(x: Any, y: Any, data: bytes = bytes([number % 256]) * 10_000) -> None:
                y[...] = data[0]

            client.register(KernelSpec("k", *X_TO_Y), PythonFunction(kernel), isolate=False)
            queue.submit("k", [x], [y]).wait(30)


def _kernel(x: Any, y: Any, **scalars: float) -> None:
    y[...] = x


def migrations(server: ServerProcess, count: int) -> None:
    with server.connect() as client, client.queue() as queue:
        x = queue.zeros(1000)
        for number in range(count):
            queue.submit("copy", [x], [x])
            client.request("migrate", {"queue": queue.id, "device": f"cpu:{number % 2}"})


def grants(server: ServerProcess, count: int) -> None:
    with server.connect("owner") as owner, server.connect("guest") as guest:
        queue = owner.queue()
        for _ in range(count):
            buffer = queue.zeros(20_000)
            imported = guest.import_buffer(buffer.export())
            imported.close()
            buffer.close()


def statuses(server: ServerProcess, count: int) -> None:
    with server.connect() as client:
        for _ in range(count):
            for operation in ("status", "devices", "kernels"):
                client.request(operation)


@pytest.mark.parametrize(
    ("use", "count"),
    [
        (native_tasks, 1_000_000),
        (python_tasks, 50_000),
        (device_tasks, 30_000),
        (failing_tasks, 10_000),
        (changing_buffers, 10_000),
        (spilled_buffers, 2_000),
        (clients, 200),
        (queues, 2_000),
        (refused_requests, 2_000),
        (registered_kernels, 1_000),
        (replaced_kernels, 500),
        (migrations, 1_500),
        (grants, 500),
        (statuses, 1_000),
    ],
)
def test_the_server_does_not_grow_with(server: ServerProcess, use: Use, count: int) -> None:
    use(server, count // 5)
    until(lambda: not server.status()["applications"])
    descriptors, threads, rss_nbytes = server.descriptors(), server.threads(), server.rss_nbytes()
    use(server, count)
    until(lambda: not server.status()["applications"])
    until(lambda: server.descriptors() <= descriptors)
    until(lambda: server.threads() <= threads)
    assert server.rss_nbytes() - rss_nbytes < SLACK_NBYTES
