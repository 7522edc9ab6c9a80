"""Copies between the host and a device with memory of its own."""

from __future__ import annotations

import time

import numpy as np

from polymux.client import Buffer, Client, Queue
from polymux.perfmodel.coexec.link import LinkModel, fit_link

SIZES_NBYTES = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
REPEATS = 5


def measure_link(client: Client, device: str, stream: str) -> LinkModel:
    """Time copies of several sizes in both directions.

    Parameters
    ----------
    client : Client
    device, stream : str
        The device is the name of the bus, which its copies share.

    Notes
    -----
    Into: from submitting a task that reads the buffer until its end, less the same once the data is there. Out: what
    the application waits for a result.
    """
    into: list[tuple[int, float]] = []
    out: list[tuple[int, float]] = []
    with client.queue("calibrate copies", stream=stream) as queue:
        for nbytes in SIZES_NBYTES:
            with queue.zeros(nbytes // 4, np.float32) as buffer:
                there = min(_read(queue, buffer) for _ in range(REPEATS))
                for _ in range(REPEATS):
                    buffer.numpy()[...] = 1
                    into.append((nbytes, max(1e-7, _read(queue, buffer) - there)))
                for _ in range(REPEATS):
                    queue.submit("fill", [], [buffer], value=2.0).wait()
                    start = time.perf_counter_ns()
                    buffer.bring_home()
                    out.append((nbytes, (time.perf_counter_ns() - start) / 1e9))
    return fit_link(device, into, out)


def _read(queue: Queue, buffer: Buffer) -> float:
    """Time of a task that reads a buffer and does nothing, in s."""
    start = time.perf_counter_ns()
    queue.submit("noop", [buffer]).wait()
    return (time.perf_counter_ns() - start) / 1e9
