"""An application that gets itself into a state and stays there: ``python application.py SOCKET STATE``."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import time
from typing import Any

import numpy as np

from polymux.client import Client, Queue
from polymux.core.implementation import PythonFunction
from polymux.core.kernel_spec import BufferParam, KernelSpec

X_TO_Y = (BufferParam("x"),), (BufferParam("y"),)


def submitting(client: Client, queue: Queue) -> None:
    x, y = queue.zeros(1000, "f4"), queue.zeros(1000, "f4")
    while True:
        queue.submit("saxpy", [x, x], [y], a=1.0)


def waiting(client: Client, queue: Queue) -> None:
    x, y = queue.zeros(8, "f4"), queue.zeros(8, "f4")
    queue.submit("sleep", [x], [y], seconds=0.3)
    for _ in range(200):  # 200 tasks with work in flight: all of them must be dropped
        last = queue.submit("double", [x], [y])
    print("ready", flush=True)
    last.wait()
    while True:
        queue.submit("sleep", [x], [y], seconds=0.3).wait()


def running(client: Client, queue: Queue) -> None:
    x, y = queue.zeros(8, "f4"), queue.zeros(8, "f4")
    queue.submit("sleep", [x], [y], seconds=0.5)
    print("ready", flush=True)
    time.sleep(60)


def on_device(client: Client, queue: Queue) -> None:
    away = client.queue(device="cpu:1")
    buffers = [away.array(np.full(50_000, i, "f4")) for i in range(8)]
    for buffer in buffers:
        away.submit("double", [buffer], [buffer])
    away.synchronize()
    print("ready", flush=True)
    time.sleep(60)


def exporting(client: Client, queue: Queue) -> None:
    buffer = queue.zeros(100_000, "f4")
    print("ready", buffer.export(), flush=True)
    time.sleep(60)


def isolated(client: Client, queue: Queue) -> None:
    def spin(x: Any, y: Any) -> None:
        while True:
            pass

    client.register(KernelSpec("spin", *X_TO_Y), PythonFunction(spin))
    x, y = queue.zeros(8, "f4"), queue.zeros(8, "f4")
    queue.submit("spin", [x], [y])
    print("ready", flush=True)
    time.sleep(60)


def migrating(client: Client, queue: Queue) -> None:
    """Its queue, full of tasks, is moved back and forth without end."""
    moving = client.queue(capacity=64)
    x, y = moving.zeros(5_000, "f4"), moving.zeros(5_000, "f4")
    for number, device in enumerate(itertools.cycle(client.devices)):
        for _ in range(30):
            moving.submit("add_ones", [x], [y])
        client.request("migrate", {"queue": moving.id, "device": device})
        if number == 5:
            print("ready", flush=True)


def about_to_move(client: Client, queue: Queue) -> None:
    """Its queue has tasks that read one buffer and change another one; somebody else moves it."""
    moving = client.queue(capacity=64)
    x, y = moving.array(np.full(20_000, 1.0)), moving.zeros(20_000, "f8")
    for number in range(10**9):
        moving.submit("saxpy", [x, y], [y], a=1.0)
        moving.submit("sleep", [y], [y], seconds=0.005)
        if number == 10:
            print("ready", moving.id, flush=True)


def behind_a_full_queue(client: Client, queue: Queue) -> None:
    small = client.queue(capacity=16, device="cpu:0")
    x, y = small.zeros(8, "f4"), small.zeros(8, "f4")
    small.submit("sleep", [x], [y], seconds=0.5)
    print("ready", flush=True)
    while True:
        small.submit("double", [x], [y])


def importing(client: Client, queue: Queue) -> None:
    buffer = queue.zeros(100_000, "f4")
    with Client(sys.argv[1], name="owner") as owner:
        kept = owner.queue().zeros(100_000, "f4")
        token = kept.export()
        print("ready", flush=True)
        while True:
            with client.import_buffer(token) as imported:
                queue.submit("add_ones", [imported], [buffer]).wait()


def crashing(client: Client, queue: Queue) -> None:
    def crash(x: Any, y: Any) -> None:
        ctypes.string_at(0)

    client.register(KernelSpec("crash", *X_TO_Y), PythonFunction(crash))
    x, y = queue.zeros(8, "f4"), queue.zeros(8, "f4")
    print("ready", flush=True)
    while True:
        queue.submit("crash", [x], [y]).error()


def idle(client: Client, queue: Queue) -> None:
    print("ready", flush=True)
    time.sleep(60)


STATES = {
    state.__name__: state
    for state in (
        submitting,
        waiting,
        running,
        on_device,
        exporting,
        importing,
        migrating,
        about_to_move,
        behind_a_full_queue,
        isolated,
        crashing,
        idle,
    )
}

if __name__ == "__main__":
    path, name = sys.argv[1:]
    client = Client(path, name=f"{name}[{os.getpid()}]", segment_nbytes=64 << 20)
    queue = client.queue(device=client.devices[0])
    if name == "submitting":
        print("ready", flush=True)
    STATES[name](client, queue)
