"""Shapes, operations and bytes of a model's nodes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.cost import nodes_of


def test_nodes_have_the_shapes_of_the_run_and_know_their_weights() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node(
            "Constant", [], ["k"], value=numpy_helper.from_array(np.ones((256, 10), np.float32), "k")
        ),
        helper.make_node("MatMul", ["f", "k"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    found = {node.op: node for node in nodes_of(model, {"x": np.ones((2, 3, 8, 8), np.float32)})}
    assert found["Conv"].flops == 2 * (2 * 4 * 8 * 8) * 27
    assert found["Conv"].weight_nbytes == 4 * 108
    assert found["MatMul"].flops == 2 * 2 * 256 * 10
    assert found["MatMul"].weight_nbytes == 4 * 2560
    assert found["Flatten"].flops == 0
    with pytest.raises(InvalidRequest, match="does not run"):
        nodes_of(model, {"x": np.ones((2, 5, 8, 8), np.float32)})
