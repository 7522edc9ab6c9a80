"""A served chain that moves between its parts takes along what the next part reads, and nothing else."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polymux.client import Client
from polymux.core.dtype import DType
from polymux.core.implementation import OnnxModel
from polymux.device.cores import allowed_cores
from polymux.onnxgraph.inputs import item_inputs
from polymux.onnxgraph.partition.choose import Wish
from polymux.onnxgraph.partition.comparison import Whole
from polymux.onnxgraph.partition.partition import Partition, partition
from polymux.serving.kernel_runner import KernelRunner
from tests.segment.server_process import ServerProcess, until
from tests.serving import repository

CORES = allowed_cores()
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
RNG = np.random.default_rng(6)
WIDTHS = (48, 80, 24, 112, 16)
"""Of what the layers hand on: each cut carries another number of bytes."""
BATCH = 64


def write_layers(path: Path) -> Path:
    """Write a model of products with rectifiers between."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
        for name, width in (("x", WIDTHS[0]), ("y", WIDTHS[-1]))
    ]
    nodes, constants, at = [], [], "x"
    for number, (rows, columns) in enumerate(pairwise(WIDTHS)):
        w = RNG.standard_normal((rows, columns)).astype(np.float32) / 8
        constants.append(numpy_helper.from_array(w, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [at, f"w{number}"], [f"m{number}"]))
        at = "y" if number == len(WIDTHS) - 2 else f"r{number}"
        nodes.append(helper.make_node("Relu", [f"m{number}"], [at]))
    onnx.save(repository.graph(nodes, ends[:1], ends[1:], constants), path)
    return path


class Mover:
    """Moves a runner's queue to the other device before one of the parts of a request."""

    def __init__(self, client: Client, runner: KernelRunner) -> None:
        self._client = client
        self._queue: Any = runner._queue
        self._submit = self._queue.submit
        self._last: Any = None
        self.before = ""
        """The part; empty: it has been done."""
        runner._queue = self  # type: ignore[assignment]

    def submit(self, *task: Any, **hints: Any) -> Any:
        if task[0] == self.before:
            self._last.wait(60)
            self.move()
            self.before = ""
        self._last = self._submit(*task, **hints)
        return self._last

    def move(self) -> None:
        other = "cpu:1" if self._device() == "cpu:0" else "cpu:0"
        self._client.request("migrate", {"queue": self._queue.id, "device": other})
        until(lambda: self._device() == other)

    def _device(self) -> str:
        states = self._client.status()["queues"]
        return str(next(state["device"] for state in states if state["id"] == self._queue.id))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def copied(client: Client) -> tuple[int, int, int]:
    """Bytes that went from the host to devices, from one to the other, and back, for all of this client's tasks."""
    accounts = [account for account in client.status()["accounts"] if account["application"] == "test"]
    keys = ("copied_in_nbytes", "copied_between_nbytes", "copied_out_nbytes")
    into, between, out = (sum(account[key] for account in accounts) for key in keys)
    return into, between, out


def cut_and_register(client: Client, path: Path, folder: Path) -> tuple[Partition, KernelRunner]:
    folder.mkdir()
    found = partition(path, item_inputs(str(path), onnx.load(path)), Wish(parts=4), folder, estimate=True)
    assert len(found.parts) == 4, found.note
    specs = [
        client.register(None, OnnxModel(str(part.path), optimized=True), name=f"part-{at}", isolate=False)
        for at, part in enumerate(found.parts)
    ]
    whole = client.register(None, OnnxModel(str(path)), name="whole", isolate=False)
    return found, KernelRunner(client, whole, parts=specs)


def test_only_what_the_next_part_reads_moves_with_a_served_chain(tmp_path: Path) -> None:
    path = write_layers(tmp_path / "layers.onnx")
    words = ("--device", f"cpu:{CORES[0]}", "--device", f"cpu:{CORES[1]}")
    with ServerProcess(tmp_path, *words) as process, process.connect() as client:
        found, runner = cut_and_register(client, path, tmp_path / "parts")
        mover = Mover(client, runner)
        x = RNG.standard_normal((BATCH, WIDTHS[0])).astype(np.float32)
        expected = Whole(path).run({"x": x})["y"]
        sizes = [BATCH * cut.nbytes for cut in found.cuts]
        assert len(set(sizes)) == len(sizes), "the cuts can be told apart"
        for number, before in enumerate(
            (1, 2, 3, 3, 1, 2)
        ):  # the first request runs part by part, later ones all parts at once
            mover.before = f"part-{before}"
            held = copied(client)
            given = runner.allocate(x.shape, DType.F32)
            given.numpy()[...] = x
            (output,) = asyncio.run(runner.run([given]))
            assert output.numpy().tobytes() == expected.tobytes()
            moved = [now - then for now, then in zip(copied(client), held, strict=True)]
            assert moved[:2] == [x.nbytes, sizes[before - 1]], (before, sizes)
            assert moved[2] == output.nbytes or number == 0, "only at first nobody knows how large it will be"
            given.close()
            output.close()
        runner.close()
