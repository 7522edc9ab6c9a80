"""Model repositories to serve: small models made here, and real ones from installed packages."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

#: Datatype of the protocol, of ONNX, and of NumPy.
DATATYPES = {
    "BOOL": (TensorProto.BOOL, np.bool_),
    "UINT8": (TensorProto.UINT8, np.uint8),
    "UINT16": (TensorProto.UINT16, np.uint16),
    "UINT32": (TensorProto.UINT32, np.uint32),
    "UINT64": (TensorProto.UINT64, np.uint64),
    "INT8": (TensorProto.INT8, np.int8),
    "INT16": (TensorProto.INT16, np.int16),
    "INT32": (TensorProto.INT32, np.int32),
    "INT64": (TensorProto.INT64, np.int64),
    "FP16": (TensorProto.FLOAT16, np.float16),
    "FP32": (TensorProto.FLOAT, np.float32),
    "FP64": (TensorProto.DOUBLE, np.float64),
}


def package_file(package: str, path: str) -> Path:
    """Return the path of a file inside an installed package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / path


def add(
    root: Path, name: str, model: Path | onnx.ModelProto | bytes, config: str = "", version: int = 1
) -> Path:
    """Put a model into a repository and return its file."""
    file = root / name / str(version) / "model.onnx"
    file.parent.mkdir(parents=True)
    if isinstance(model, Path):
        shutil.copy(model, file)
    elif isinstance(model, bytes):
        file.write_bytes(model)
    else:
        onnx.save(model, file)
    if config:
        (root / name / "config.pbtxt").write_text(config)
    return file


def graph(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: Sequence[Any] = ()
) -> onnx.ModelProto:
    """Make a model."""
    made = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def identity(datatype: str, shape: Sequence[int | str | None] = ("n",)) -> onnx.ModelProto:
    """Make a model whose output `y` is its input `x`."""
    kind = TensorProto.BFLOAT16 if datatype == "BF16" else DATATYPES[datatype][0]
    tensors = [helper.make_tensor_value_info(name, kind, shape) for name in "xy"]
    return graph([helper.make_node("Identity", ["x"], ["y"])], tensors[:1], tensors[1:])


def add_sub(extent: int | str = 16) -> onnx.ModelProto:
    """Make the protocol's classic example: OUTPUT0 is the sum, OUTPUT1 the difference of two INT32 tensors."""
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", extent])
        for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    ]
    names = ["INPUT0", "INPUT1"]
    nodes = [helper.make_node("Add", names, ["OUTPUT0"]), helper.make_node("Sub", names, ["OUTPUT1"])]
    return graph(nodes, tensors[:2], tensors[2:])


def repeat() -> onnx.ModelProto:
    """Make a model whose output length depends on a value: `y` is `x` repeated `count` times."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    count = helper.make_tensor_value_info("count", TensorProto.INT64, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m"])
    return graph([helper.make_node("Tile", ["x", "count"], ["y"])], [x, count], [y])


def strict_add() -> onnx.ModelProto:
    """Make a model that fails at run time when its two inputs differ in length."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"n_{name}"]) for name in "aby"]
    return graph([helper.make_node("Add", ["a", "b"], ["y"])], tensors[:2], tensors[2:])
