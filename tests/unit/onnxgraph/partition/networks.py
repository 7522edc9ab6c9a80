"""Small networks to cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from polymux.onnxgraph.inputs import ItemInput, item_inputs

RNG = np.random.default_rng(5)


def weights(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32) / 8, name)


def node(op: str, reads: str, writes: str, **attributes: Any) -> Any:
    return helper.make_node(op, reads.split(), writes.split(), **attributes)


def save(
    path: Path,
    nodes: Sequence[Any],
    constants: Sequence[Any] = (),
    outputs: Sequence[str] = ("y",),
    shape: Sequence[int | str] = ("n", 8, 16, 16),
    kind: int = TensorProto.FLOAT,
    ir_version: int = 8,
) -> Path:
    ends = [helper.make_tensor_value_info("x", kind, shape)]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    if ir_version < 4:  # weights are inputs then
        ends += [helper.make_tensor_value_info(its.name, its.data_type, its.dims) for its in constants]
    graph = helper.make_graph(nodes, "g", ends, made, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)
    onnx.save(model, path)
    return path


def convolutions(path: Path, count: int = 6) -> Path:
    """Write a chain of convolutions, each followed by a rectifier."""
    nodes, constants, at = [], [], "x"
    for number in range(count):
        constants += [weights(f"w{number}", 8, 8, 3, 3)]
        nodes.append(node("Conv", f"{at} w{number}", f"c{number}", kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
        at = "y" if number == count - 1 else f"r{number}"
        nodes.append(node("Relu", f"c{number}", at))
    return save(path, nodes, constants)


def inputs_of(path: Path) -> tuple[ItemInput, ...]:
    return item_inputs(str(path), onnx.load(path))
