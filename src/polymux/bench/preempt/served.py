"""Requests through a server of Polymux: its side, and that of the application that asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from polymux.client import Client
from polymux.onnxgraph.file import load_model
from polymux.onnxgraph.inputs import ItemInput
from polymux.onnxgraph.output_shapes import output_shapes
from polymux.profiling.private_server import PrivateServer
from polymux.profiling.target import registered

PRIORITY = 10
"""Of requests; training has 0."""
JOBS = "switchflow"


def server_on(cores: Sequence[int]) -> PrivateServer:
    """Return a server whose only device are some cores, with one stream, so that a request has all of them."""
    names = ",".join(map(str, cores))
    return PrivateServer([f"cpu:{names},memory=host,streams=1"], ["--jobs", JOBS])


@contextmanager
def served(name: str, path: Path, inputs: Sequence[ItemInput], socket: str) -> Iterator[Callable[[], object]]:
    """Give a function that has one request computed by a server and waits for the answer.

    Parameters
    ----------
    name : str
        Of the model.
    path : pathlib.Path
    inputs : sequence of ItemInput
    socket : str
        Of the server.
    """
    rng = np.random.default_rng(0)
    outputs = output_shapes(load_model(path), inputs, 2)
    with ExitStack() as stack:
        client = stack.enter_context(Client(socket, name="inference"))
        kernel = stack.enter_context(registered(client, name, path))
        queue = stack.enter_context(client.queue("requests", priority=PRIORITY))
        given = [queue.array(item.values(1, rng)) for item in inputs]
        shapes = zip(outputs.of(1), outputs.dtypes, strict=True)
        taken = [queue.empty(shape, dtype) for shape, dtype in shapes]
        yield lambda: queue.submit(kernel, given, taken).wait()


def wait_p99_ms(server: PrivateServer) -> float | None:
    """Return how long 99 % of the tasks waited at most for training to give way; None: none had to ask."""
    with server.connect("status") as client:
        (device,) = client.status()["devices"]
    waits = device["task_waits"]
    return waits["p99_ns"] / 1e6 if waits["count"] else None
