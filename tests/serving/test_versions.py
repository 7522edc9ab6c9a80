"""A model with versions for two libraries: each device runs its own, and a queue that moves goes on with the other."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest

from polymux.client.model_versions import register_versions, wanted_versions
from polymux.core.implementation import OnnxModel
from polymux.device.cores import allowed_cores
from polymux.onnxgraph.partition.choose import Wish
from polymux.onnxgraph.partition.comparison import Whole
from polymux.onnxgraph.partition.partition import partition
from tests.segment.server_process import ServerProcess
from tests.serving import repository
from tests.serving.front_end import server, serving
from tests.serving.test_partition import BATCHED, infer, layers
from tests.unit.onnxgraph.partition.networks import convolutions, inputs_of

CORES = allowed_cores()
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None or len(CORES) < 2, reason="needs openvino and two cores"
)


def test_a_queue_that_moves_in_the_middle_of_a_chain_goes_on_with_the_other_library(tmp_path: Path) -> None:
    path = convolutions(tmp_path / "model.onnx")
    folder = tmp_path / "parts"
    folder.mkdir()
    found = partition(path, inputs_of(path), Wish(parts=3), folder, estimate=True, portable=True)
    x = np.random.default_rng(1).standard_normal((1, 8, 16, 16)).astype(np.float32)
    expected = Whole(path).run({"x": x})["y"]
    words = ("--device", f"cpu:{CORES[0]}", "--device", f"cpu:{CORES[1]},models=openvino")
    with ServerProcess(tmp_path, *words) as process, process.connect() as client:
        assert wanted_versions(client) == ("openvino",)
        for at, part in enumerate(found.parts):
            register_versions(client, f"part-{at}", OnnxModel(str(part.path)), part.plain)
        queue = client.queue()
        values = {"x": queue.array(x), "y": queue.empty(expected.shape)}
        for cut in found.cuts:
            values |= {name: queue.empty(found.nodes.tensors[name].shape) for name in cut.tensors}
        for device in ("cpu:1", "cpu:0", "cpu:1", "cpu:0"):
            for at, part in enumerate(found.parts):
                if at == 1:
                    client.request("migrate", {"queue": queue.id, "device": device})
                queue.submit(
                    f"part-{at}",
                    [values[name] for name in part.inputs],
                    [values[name] for name in part.outputs],
                )
            queue.synchronize(60)
            np.testing.assert_allclose(values["y"].numpy(), expected, rtol=1e-4, atol=1e-5)
        status = process.status()
    tasks = {device["id"]: sum(its["tasks"] for its in device["streams"]) for device in status["devices"]}
    assert all(tasks.values()), tasks


def test_a_front_end_gives_models_and_parts_a_version_for_each_library(tmp_path: Path) -> None:
    models = tmp_path / "models"
    made = layers()
    repository.add(models, "whole", made, BATCHED)
    repository.add(
        models, "cut", made, BATCHED + 'parameters { key: "partition" value { string_value: "3" } }'
    )
    socket = tmp_path / "sock"
    x = np.random.default_rng(3).standard_normal((2, 48)).astype(np.float32)
    session = Whole(models / "whole" / "1" / "model.onnx")
    with server(socket, f"cpu:{CORES[0]},models=openvino"), serving(models, "--socket", str(socket)) as front:
        front.wait_until_loaded()
        for name in ("whole", "cut"):
            np.testing.assert_allclose(
                infer(front, name, x), session.run({"x": x})["y"], rtol=1e-4, atol=1e-5
            )
        assert "is cut into 3 parts" in front.log.read_text()


def test_a_version_that_cannot_be_loaded_makes_way_for_the_next_one_and_the_server_says_so(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layers(2), path)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with ServerProcess(tmp_path, "--device", "cpu,models=openvino") as process, process.connect() as client:
        register_versions(client, "model", OnnxModel(str(path)), tmp_path / "bad.onnx")
        with client.queue() as queue:
            x, y = queue.array(np.ones((1, 48), np.float32)), queue.empty((1, 48))
            queue.submit("model", [x], [y]).wait(60)
        assert "model runs on cpu:0 with its version for onnx" in process.log.read_text()
