"""A model of a kernels file that runs in a worker process; its inputs and outputs are read from the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.segment.server_process import ServerProcess


def write_model(file: Path) -> None:
    """y = x + x."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, str(file))


def test_an_operators_model_runs_in_a_worker_process(tmp_path: Path) -> None:
    write_model(tmp_path / "double.onnx")
    kernels = tmp_path / "kernels.toml"
    kernels.write_text('[[kernel]]\nname = "double_model"\nonnx = { model = "double.onnx" }\n')
    arguments = ("--device", "cpu", "--isolated-kernels", str(kernels))
    with ServerProcess(tmp_path, *arguments) as server, server.connect() as client, client.queue() as queue:
        assert [param.name for param in client.kernel_spec("double_model").inputs] == ["x"]
        x, y = queue.array(np.arange(4, dtype="f4")), queue.empty(4, "f4")
        queue.submit("double_model", [x], [y]).wait(60)
        assert y.numpy().tolist() == [0, 2, 4, 6]
