"""Kernels that an application registers do their worst to their worker process: their own task fails, nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polymux
from polymux.client import Client
from polymux.core.errors import KernelCrashed, KernelFailed, OutOfDeviceMemory, TaskFailed
from polymux.core.implementation import NativeFunction, PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec
from tests.segment.server_process import ServerProcess, until

X_TO_Y = (BufferParam("x"),), (BufferParam("y"),)
CONFIG = '[limits]\nworker_nbytes = "512 MiB"\n'
NATIVE = r"""
#include "polymux.h"
#include <stdlib.h>
#include <string.h>
uint32_t polymux_kernel_library_abi(void) { return POLYMUX_KERNEL_ABI; }
static int deeper(volatile int *n) { volatile int m = *n + 1; return deeper(&m) + m; }
int recurse(polymux_kernel_call *c) { volatile int n = 0; return deeper(&n) == (int)c->n_buffers; }
int allocate(polymux_kernel_call *c) {
  for (;;) { char *p = malloc(1 << 20); if (!p) return 5; memset(p, (int)c->n_buffers, 1 << 20); }
}
int fails(polymux_kernel_call *c) { (void)c; return 77; }
int says_why(polymux_kernel_call *c) { strncpy(c->message, "no luck today", c->message_nbytes); return -1; }
int aborts(polymux_kernel_call *c) { (void)c; abort(); }
int leaves(polymux_kernel_call *c) { (void)c; exit(9); }
int overwrites(polymux_kernel_call *c) {
  volatile char *p = (volatile char *)&c;
  for (int i = 0; i < 1 << 24; ++i) p[i] = -1;
  return 0;
}
int good(polymux_kernel_call *c) {
  const double *x = c->buffers[0].data; double *y = c->buffers[1].data;
  for (int64_t i = 0; i < c->buffers[0].shape[0]; ++i) y[i] = x[i] + 1;
  return 0;
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "polymux.toml").write_text(CONFIG)
    device = ("--device", "cpu,streams=1")  # so that all share one accelerator thread
    with ServerProcess(folder, "--config", str(folder / "polymux.toml"), *device) as made:
        yield made


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with server.connect() as made:
        yield made
    until(lambda: not server.children())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("library")
    (folder / "k.c").write_text(NATIVE)
    include = Path(polymux.__file__).parent / "include"
    words = ["gcc", "-O1", "-fno-optimize-sibling-calls", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run([*words, "-w", "-o", folder / "libk.so", folder / "k.c"], check=True)
    return str(folder / "libk.so")


def deeper(n: int) -> int:
    return deeper(n + 1) + 1


def recurse(x: Any, y: Any) -> None:
    deeper(0)


def recurse_through_the_stack(x: Any, y: Any) -> None:
    sys.setrecursionlimit(10**9)
    value: Any = []
    for _ in range(10**7):
        value = [value]
    repr(value)
    deeper(0)


def allocate_bytes(x: Any, y: Any) -> None:
    kept = []
    while True:
        kept.append(bytearray(1 << 20))


def allocate_arrays(x: Any, y: Any) -> None:
    kept = []
    while True:
        kept.append(np.ones(1 << 20))


def close_everything(x: Any, y: Any) -> None:
    os.closerange(3, 4096)


def become_another_program(x: Any, y: Any) -> None:
    os.execv("/bin/true", ["true"])


def leave_a_child_that_holds_the_channel(x: Any, y: Any) -> None:
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)


def write_to_the_channel(data: bytes) -> Callable[[Any, Any], None]:
    def kernel(x: Any, y: Any) -> None:
        import contextlib
        import socket

        for descriptor in range(3, 64):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as channel:
                channel.sendall(data)
        os._exit(0)

    return kernel


def leave_threads(x: Any, y: Any) -> None:
    import threading

    for _ in range(20):
        threading.Thread(target=time.sleep, args=(600,)).start()
    raise KeyboardInterrupt


def flood_the_output(x: Any, y: Any) -> None:
    raise ValueError("x" * 10_000_000)


def an_error_that_cannot_be_told(x: Any, y: Any) -> None:
    class Untold(Exception):
        def __str__(self) -> str:
            raise RuntimeError("and this fails, too")

    raise Untold


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (recurse, KernelFailed, "RecursionError"),
        (recurse_through_the_stack, TaskFailed, "SIGSEGV|MemoryError|memory is used up|RecursionError"),
        (allocate_bytes, OutOfDeviceMemory, "memory is used up"),
        (allocate_arrays, OutOfDeviceMemory, "memory is used up"),
        (close_everything, TaskFailed, "worker process"),
        (become_another_program, KernelCrashed, "exit code 0"),
        (leave_a_child_that_holds_the_channel, KernelCrashed, "exit code 0"),
        (write_to_the_channel(b"\xff" * 4096), KernelCrashed, "worker process"),
        (write_to_the_channel(b"\x02\0\0\0\0\0\0\0[]"), KernelCrashed, "worker process"),
        (write_to_the_channel(b"\x05\0\0\0\0\0\0\0{"), KernelCrashed, "worker process"),
        (write_to_the_channel(b'\x11\0\0\0\0\0\0\0{"status": "good"}'), TaskFailed, None),
        (leave_threads, KernelFailed, "KeyboardInterrupt"),
        (flood_the_output, KernelFailed, "ValueError: xxx"),
        (an_error_that_cannot_be_told, TaskFailed, None),
    ],
)
def test_a_runaway_kernel_costs_its_own_task_only(
    server: ServerProcess,
    client: Client,
    function: Callable[[Any, Any], None],
    error: type[TaskFailed],
    said: str | None,
) -> None:
    client.register(KernelSpec("runaway", *X_TO_Y), PythonFunction(function))
    check(server, client, "runaway", error, said)


@pytest.mark.parametrize(
    ("symbol", "error", "said"),
    [
        ("recurse", KernelCrashed, "SIGSEGV"),
        ("allocate", KernelFailed, "5"),
        ("fails", KernelFailed, "77"),
        ("says_why", KernelFailed, "no luck today"),
        ("aborts", KernelCrashed, "SIGABRT"),
        ("leaves", KernelCrashed, "exit code 9"),
        ("overwrites", KernelCrashed, "SIG"),
    ],
)
def test_a_native_runaway_kernel_costs_its_own_task_only(
    server: ServerProcess,
    client: Client,
    library: str,
    symbol: str,
    error: type[TaskFailed],
    said: str | None,
) -> None:
    client.register(KernelSpec("runaway", *X_TO_Y), NativeFunction(library, symbol))
    client.register(KernelSpec("good", *X_TO_Y), NativeFunction(library, "good"))
    check(server, client, "runaway", error, said)
    queue = client.queue()
    x, y = queue.array(np.arange(9.0)), queue.zeros(9, "f8")
    queue.submit("good", [x], [y]).wait(60)
    assert (y.numpy() == np.arange(9.0) + 1).all()


def check(
    server: ServerProcess, client: Client, kernel: str, error: type[TaskFailed], said: str | None
) -> None:
    """Run a kernel that fails between other tasks of its queue and of another application."""
    queue = client.queue()
    x, y = queue.array(np.arange(9.0)), queue.zeros(9, "f8")
    with server.connect("other") as other:
        others = other.queue()
        a, b = others.array(np.arange(100.0)), others.zeros(100, "f8")
        tasks = [others.submit("saxpy", [a, a], [b], a=1.0) for _ in range(50)]
        before = queue.submit("copy", [x], [y])
        bad = queue.submit(kernel, [x], [y])
        after = queue.submit("saxpy", [x, x], [y], a=1.0)
        with pytest.raises(error, match=said) as caught:
            bad.wait(90)
        assert len(str(caught.value)) < 5000
        before.wait(60)
        after.wait(60)
        for task in tasks:
            task.wait(60)
        assert (b.numpy() == 2 * np.arange(100.0)).all()
    assert (y.numpy() == 2 * np.arange(9.0)).all()


def test_a_worker_process_is_the_first_to_go_when_memory_runs_out(
    server: ServerProcess, client: Client
) -> None:
    client.register(KernelSpec("keep", *X_TO_Y), PythonFunction(lambda x, y: None))
    queue = client.queue()
    queue.submit("keep", [queue.zeros(1)], [queue.zeros(1)]).wait(60)
    [worker] = server.children()
    own = int(Path(f"/proc/{server.pid}/oom_score_adj").read_text())
    assert int(Path(f"/proc/{worker}/oom_score_adj").read_text()) == 1000 > own


def test_a_worker_that_is_stopped_or_killed_from_outside_is_replaced(
    server: ServerProcess, client: Client
) -> None:
    client.register(KernelSpec("double_it", *X_TO_Y), PythonFunction(lambda x, y: y.__setitem__(..., 2 * x)))
    queue = client.queue()
    x, y = queue.array(np.arange(9.0)), queue.zeros(9, "f8")
    for number in (signal.SIGKILL, signal.SIGTERM):
        queue.submit("double_it", [x], [y]).wait(60)
        [worker] = server.children()
        os.kill(worker, number)
        until(lambda: queue.submit("double_it", [x], [y]).error(60) is None, 60)
        assert (y.numpy() == 2 * np.arange(9.0)).all()
