"""The device that is measured, as a client sees it: its shares, and batches that run on one of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from polymux.client import Buffer, Client, Queue
from polymux.client.model_versions import register_versions, runs_models
from polymux.core.errors import ConfigError, InvalidRequest, OutputTooSmall
from polymux.core.implementation import OnnxModel
from polymux.core.kernel_spec import BufferParam
from polymux.onnxgraph.inputs import ItemInput
from polymux.onnxgraph.output_shapes import OutputShapes
from polymux.profiles import DeviceIdentity, identify

_UNUSUAL = re.compile(r"[^A-Za-z0-9_.:-]")
_MOST_CHARACTERS = 100


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
        _target(client, device)
        for device in devices
        if runs_models(device["apis"]) and device["lost"] is None
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
    """Have a model as a kernel meanwhile, and give the kernel's name: the name without what kernels' cannot have."""
    kernel = _UNUSUAL.sub("_", name)[-_MOST_CHARACTERS:]
    register_versions(client, kernel, OnnxModel(str(path)), path)
    try:
        yield kernel
    finally:
        if not client.closed:
            client.unregister(kernel)


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
        taken = _Outputs(queue, target.client.kernel_spec(kernel).outputs, outputs, batch)
        stack.callback(taken.close)

        def once() -> int:
            while True:
                start = time.perf_counter_ns()
                try:
                    queue.submit(kernel, given, taken.buffers).wait()
                except OutputTooSmall as error:
                    taken.enlarge(error)
                else:
                    return time.perf_counter_ns() - start

        yield once


class _Outputs:
    """Buffers for the outputs of a batch; they grow when the sizes depend on the inputs' values."""

    def __init__(
        self, queue: Queue, params: Sequence[BufferParam], outputs: OutputShapes, batch: int
    ) -> None:
        self._queue = queue
        self._params = params
        self.buffers: list[Buffer] = []
        try:
            for shape, dtype in zip(outputs.of(batch), outputs.dtypes, strict=True):
                self.buffers.append(queue.empty(shape, dtype))
        except BaseException:
            self.close()
            raise

    def enlarge(self, error: OutputTooSmall) -> None:
        """Put a larger buffer in the place of one that was too small; raises the error when that cannot help."""
        at = next((at for at, param in enumerate(self._params) if param.name == error.output), None)
        shape = None if at is None else self._params[at].shape
        if at is None or shape is None or None not in shape or error.needed_nbytes is None:
            raise error
        old = self.buffers[at]
        step_nbytes = prod(extent for extent in shape if extent is not None) * old.dtype.itemsize
        free = iter([-(-error.needed_nbytes // max(1, step_nbytes))])
        self.buffers[at] = self._queue.empty(
            tuple(next(free, 1) if extent is None else extent for extent in shape), old.dtype
        )
        old.close()

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()
