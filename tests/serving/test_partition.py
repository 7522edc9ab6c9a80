"""Models that are served in parts: the same answers, and more urgent tasks between the parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polymux.client import Client
from polymux.core.implementation import OnnxModel
from polymux.onnxgraph.inputs import item_inputs
from polymux.onnxgraph.partition.choose import Wish
from polymux.onnxgraph.partition.partition import partition
from polymux.profiling.samples import write_sample
from tests.segment.server_process import ServerProcess
from tests.segment.timeline import Timeline
from tests.serving import repository
from tests.serving.front_end import FrontEnd, server, serving

RNG = np.random.default_rng(2)
BATCHED = "max_batch_size: 8\n"


def layers(count: int = 6, width: int = 48) -> onnx.ModelProto:
    """Make a model of products, each with a sum and a rectifier."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in "xy"]
    nodes, constants, at = [], [], "x"
    for number in range(count):
        w = RNG.standard_normal((width, width)).astype(np.float32) / 8
        constants += [numpy_helper.from_array(w, f"w{number}"), numpy_helper.from_array(w[0], f"b{number}")]
        nodes.append(helper.make_node("MatMul", [at, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Add", [f"m{number}", f"b{number}"], [f"a{number}"]))
        at = "y" if number == count - 1 else f"r{number}"
        nodes.append(helper.make_node("Relu", [f"a{number}"], [at]))
    return repository.graph(nodes, tensors[:1], tensors[1:], constants)


def chosen() -> onnx.ModelProto:
    """Make a model that hands on as many rows as its input has positive ones: another shape for other values."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", 4])
    constants = [
        numpy_helper.from_array(np.array([0.0], np.float32), "zero"),
        numpy_helper.from_array(np.array([1], np.int64), "axis"),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("Compress", ["x", "positive"], ["rows"], axis=0),
        helper.make_node("Sigmoid", ["rows"], ["s"]),
        helper.make_node("Tanh", ["s"], ["y"]),
    ]
    return repository.graph(nodes, [x], [y], constants)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("models")
    made = layers()
    repository.add(root, "whole", made, BATCHED)
    repository.add(root, "cut", made, BATCHED + 'parameters { key: "partition" value { string_value: "4" } }')
    repository.add(root, "chosen", chosen(), 'input { name: "x" data_type: TYPE_FP32 dims: [3, 4] }')
    repository.add(root, "id", repository.identity("FP32", (4,)))
    return root


@pytest.fixture(scope="module")
def front(models: Path) -> Iterator[FrontEnd]:
    with serving(models, "--partition", "chosen=4", "--partition", "id=2") as made:
        made.wait_until_loaded()
        yield made


def infer(front: FrontEnd, model: str, x: np.ndarray[Any, Any], priority: int = 0) -> np.ndarray[Any, Any]:
    request: dict[str, Any] = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]
    }
    if priority:
        request["parameters"] = {"priority": priority}
    status, answer = front.get(f"/v2/models/{model}/infer", json.dumps(request).encode())
    assert status == 200, answer
    (output,) = answer["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def test_a_cut_model_answers_as_the_whole_one_for_every_batch_and_from_many_clients(front: FrontEnd) -> None:
    batches = [RNG.standard_normal((1 + at % 8, 48)).astype(np.float32) for at in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda x: infer(front, "cut", x), batches))
    for x, answer in zip(batches, answers, strict=True):
        assert answer.tobytes() == infer(front, "whole", x).tobytes()
    assert "model cut/1 is cut into 4 parts" in front.log.read_text()


def test_a_model_that_hands_on_other_shapes_for_other_values_answers_right(front: FrontEnd) -> None:
    assert "model chosen/1 is cut into" in front.log.read_text()
    for rows in ([1, 1, 1], [1, -1, 1], [-1, -1, 1], [-1, -1, -1], [1, 1, 1], [-1, 1, -1]):
        x = np.repeat(np.array(rows, np.float32)[:, None], 4, axis=1)
        expected = np.tanh(1 / (1 + np.exp(-x[x[:, 0] > 0])))
        np.testing.assert_allclose(infer(front, "chosen", x), expected, rtol=1e-5)


def test_a_model_that_cannot_be_cut_is_served_whole_and_the_log_says_so(front: FrontEnd) -> None:
    assert "model id/1 runs whole: it is a single node, Identity" in front.log.read_text()
    assert infer(front, "id", np.arange(4, dtype=np.float32)).tolist() == [0, 1, 2, 3]


def test_a_part_that_fails_is_an_error_of_its_request_alone(front: FrontEnd) -> None:
    status, answer = front.get(
        "/v2/models/chosen/infer",
        json.dumps(
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 5], "data": [1.0] * 15}]}
        ).encode(),
    )
    assert status == 400, answer
    x = np.ones((3, 4), np.float32)
    assert infer(front, "chosen", x).shape == (3, 4)


def test_a_cut_model_is_served_under_a_policy_and_on_devices_with_memory_of_their_own(
    models: Path, tmp_path: Path
) -> None:
    for device, options in (
        ("cpu,shares=nested", ("--policy", "spacetime", "--slo-ms", "60000")),
        ("cpu:0", ()),
    ):
        socket = tmp_path / f"{device[:4]}.sock"
        with server(socket, device), serving(models, "--socket", str(socket), *options) as front:
            front.wait_until_loaded()
            batches = [RNG.standard_normal((1 + at % 3, 48)).astype(np.float32) for at in range(12)]
            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(lambda x: infer(front, "cut", x), batches))
            for x, answer in zip(batches, answers, strict=True):
                np.testing.assert_allclose(answer, infer(front, "whole", x), rtol=1e-5, atol=1e-6)


def test_a_flag_that_cannot_be_read_or_names_no_model_ends_the_front_end(models: Path) -> None:
    for flag, told in (("finely", "give off, auto"), ("nobody=auto", "not in the repository")):
        with pytest.raises(AssertionError, match=told), serving(models, "--partition", flag):
            pass


class Parts:
    """A model in parts on a queue of its own."""

    def __init__(self, client: Client, path: Path, folder: Path, parts: int, priority: int) -> None:
        inputs = item_inputs(str(path), onnx.load(path))
        folder.mkdir()
        self.found = partition(path, inputs, Wish(parts=parts), folder, estimate=True)
        assert self.found.why_whole == ""
        self.name = path.stem
        self.specs = [
            client.register(
                None, OnnxModel(str(part.path), optimized=True), name=f"{self.name}-{at}", isolate=False
            )
            for at, part in enumerate(self.found.parts)
        ]
        for spec in self.specs:
            client.prepare(spec.name, "cpu:0/0")
        self.queue = client.queue(self.name, priority=priority, stream="cpu:0/0", capacity=1024)
        self.values = {item.name: self.queue.zeros(item.shape, item.dtype) for item in inputs}
        for name, seen in self.found.nodes.tensors.items():
            if any(name in part.outputs for part in self.found.parts):
                self.values[name] = self.queue.empty(
                    seen.shape, np.dtype(seen.kind.replace("float", "float32"))
                )

    def submit(self) -> Sequence[Any]:
        return [
            self.queue.submit(
                spec.name,
                [self.values[name] for name in part.inputs],
                [self.values[name] for name in part.outputs],
            )
            for spec, part in zip(self.specs, self.found.parts, strict=True)
        ]


def test_an_urgent_model_runs_between_the_parts_of_another_on_the_same_stream(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    heavy = write_sample("squeezenet", tmp_path / "heavy.onnx")
    onnx.save(layers(2), tmp_path / "light.onnx")
    words = ("--device", "cpu,streams=1", "--trace", str(trace))
    with ServerProcess(tmp_path, *words) as process, process.connect() as client:
        low = Parts(client, heavy, tmp_path / "heavy", 8, priority=0)
        high = Parts(client, tmp_path / "light.onnx", tmp_path / "light", 2, priority=10)
        runs = [low.submit() for _ in range(60)]
        runs[0][0].wait(60)
        overtaken = 0
        for _ in range(40):
            for task in high.submit():
                task.wait(60)
            overtaken += not runs[-1][-1].done()
        runs[-1][-1].wait(60)
    assert overtaken, "whoever is urgent does not wait for what is not"
    order = [event["name"] for event in Timeline(trace).of("task")]
    steps = [name for name in order if name.startswith(("heavy-", "light-"))]
    inside = [
        after
        for before, after in pairwise(steps)
        if after == "light-0" and before.startswith("heavy-") and before != "heavy-7"
    ]
    assert inside, "some of them come within a run of the other model"
    heavy_steps = [name for name in steps if name.startswith("heavy-")]
    assert len(heavy_steps) > 8
    assert heavy_steps == [f"heavy-{at % 8}" for at in range(len(heavy_steps))], "each run stays in order"
