"""The device that is measured, as a client sees it: its shares, and batches that run on one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polymux.client import Buffer, Client
from polymux.core.errors import ConfigError, InvalidRequest
from polymux.core.implementation import OnnxModel
from polymux.onnxgraph.inputs import ItemInput
from polymux.onnxgraph.output_shapes import OutputShapes
from polymux.profiles import DeviceIdentity, identify


@dataclass(frozen=True, slots=True)
class Target:
    """A device of a server.

    Parameters
    ----------
    client : Client
        Connection to the server; stays the caller's.
    device : str
        Its id.
    identity : DeviceIdentity
    streams : mapping of int to str
        For each share that it offers, in compute units, a stream that has it.
    """

    client: Client
    device: str
    identity: DeviceIdentity
    streams: Mapping[int, str]

    def shares(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Those shares that are to be measured; all of them when none are named.

        Raises
        ------
        InvalidRequest
            If one is not offered.
        """
        for units in wanted:
            if units not in self.streams:
                raise InvalidRequest(
                    f"units {units}: {self.device} offers shares of {', '.join(map(str, sorted(self.streams)))} units;"
                    " a server started with --device cpu,shares=nested offers more"
                )
        return wanted or tuple(sorted(self.streams))


def targets(client: Client) -> list[Target]:
    """List the devices of a server that run ONNX models.

    Raises
    ------
    ConfigError
        If it has none.
    """
    devices = client.status()["devices"]
    found = [
        _target(client, device) for device in devices if "onnx" in device["apis"] and device["lost"] is None
    ]
    if not found:
        there = ", ".join(device["id"] for device in devices) or "none"
        raise ConfigError("server", "devices", there, "none runs ONNX models; give a cpu device")
    return found


def _target(client: Client, device: Mapping[str, Any]) -> Target:
    streams: dict[int, str] = {}
    for stream in device["streams"]:
        units = device["units"] if stream["units"] is None else len(stream["units"])
        streams.setdefault(units, stream["id"])
    return Target(client, device["id"], identify(device), streams)


@contextmanager
def registered(client: Client, name: str, path: Path) -> Iterator[str]:
    """Have a model as a kernel meanwhile."""
    client.register(None, OnnxModel(str(path)), name=name, isolate=False)
    try:
        yield name
    finally:
        if not client.closed:
            client.unregister(name)


@contextmanager
def batches_on(
    target: Target,
    units: int,
    kernel: str,
    inputs: Sequence[ItemInput],
    outputs: OutputShapes,
    batch: int,
) -> Iterator[Callable[[], int]]:
    """Give a function that runs one batch and returns how long it took, in ns.

    The time is that of an application: from submitting the task until it knows of its end.

    Raises
    ------
    SegmentFull
        If the batch does not fit the memory shared with the server.
    TaskFailed
        By the function, if the model fails.
    """
    rng = np.random.default_rng(0)
    with ExitStack() as stack:
        queue = target.client.queue(f"profile {kernel}", stream=target.streams[units])
        stack.callback(queue.close)
        given: list[Buffer] = []
        for item in inputs:
            given.append(queue.array(item.values(batch, rng)))
            stack.callback(given[-1].close)
        taken: list[Buffer] = []
        for shape, dtype in zip(outputs.of(batch), outputs.dtypes, strict=True):
            taken.append(queue.empty(shape, dtype))
            stack.callback(taken[-1].close)

        def once() -> int:
            start = time.perf_counter_ns()
            queue.submit(kernel, given, taken).wait()
            return time.perf_counter_ns() - start

        yield once
