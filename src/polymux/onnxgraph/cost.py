"""Shapes of all nodes of a model for given inputs, seen when it runs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from polymux.onnxgraph.inputs import Arrays
from polymux.onnxgraph.packages import import_onnx, import_onnxruntime
from polymux.onnxgraph.running import plain_options, run_session, session_of
from polymux.perfmodel.operations import Node, Tensor

ITEM_NBYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4,
    "float": 4, "int64": 8, "uint64": 8, "double": 8, "complex64": 8, "complex128": 16, "int4": 0.5, "uint4": 0.5,
}  # fmt: skip
_ATTRIBUTES = ("transA", "transB", "kernel_shape", "equation", "group")


def optimized(model: Any) -> Any:
    """Return a model as it is run: constants folded, operators fused, its layout as it was.

    Raises
    ------
    InvalidRequest
        If it cannot be loaded.
    """
    with tempfile.TemporaryDirectory(prefix="polymux-") as folder:
        path = Path(folder) / "optimized.onnx"
        options = plain_options()
        options.graph_optimization_level = import_onnxruntime().GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        session_of(model, options)
        return import_onnx().load(str(path))


def nodes_of(model: Any, arrays: Arrays) -> list[Node]:
    """Run a model once and return its nodes with the shapes that they had, those of taken branches included.

    Parameters
    ----------
    model : onnx.ModelProto
    arrays : dict of str to ndarray
        Its inputs.

    Raises
    ------
    InvalidRequest
        If the model does not run on them.

    Notes
    -----
    Shapes that depend on values are those of this run. Nothing is optimized, so the nodes are those of the file.
    """
    named = type(model)()
    named.CopyFrom(model)
    attributes: dict[str, dict[str, Any]] = {}
    weights: set[str] = set()
    for number, (node, constants) in enumerate(_walk(named.graph, frozenset())):
        node.name = f"n{number}"
        attributes[node.name] = attributes_of(node)
        weights.update(f"{node.name}:{at}" for at, name in enumerate(node.input) if name in constants)
    with tempfile.TemporaryDirectory(prefix="polymux-") as folder:
        options = plain_options()
        options.graph_optimization_level = import_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry(
            "session.disable_prepacking", "1"
        )  # packed weights would be left out
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "nodes")
        session = session_of(named, options)
        run_session(session, arrays)
        events = json.loads(Path(session.end_profiling()).read_text())
    return list(_nodes(events, attributes, weights))


def _nodes(
    events: Sequence[dict[str, Any]], attributes: dict[str, dict[str, Any]], weights: set[str]
) -> Iterator[Node]:
    for event in events:
        facts = event.get("args", {})
        name, _, kind = event.get("name", "").rpartition("_kernel_time")
        if kind or name not in attributes:
            continue
        inputs = tuple(
            _tensor(tensor, f"{name}:{at}" in weights)
            for at, tensor in enumerate(facts.get("input_type_shape", []))
        )
        outputs = tuple(_tensor(tensor, False) for tensor in facts.get("output_type_shape", []))
        yield Node(facts["op_name"], inputs, outputs, attributes[name], name)


def _tensor(described: dict[str, list[int]], constant: bool) -> Tensor | None:
    for kind, shape in described.items():
        return Tensor(tuple(shape), ITEM_NBYTES.get(kind, 4), constant)
    return None


def _walk(graph: Any, outer: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield every node with the names of the constants that it can see."""
    constants = outer | {tensor.name for tensor in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type in ("Constant", "ConstantOfShape")}
    for node in graph.node:
        yield node, constants
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                yield from _walk(inner, constants)


def attributes_of(node: Any) -> dict[str, Any]:
    """Read those attributes of a node that tell how many operations it takes."""
    get = import_onnx().helper.get_attribute_value
    found = {attribute.name: get(attribute) for attribute in node.attribute if attribute.name in _ATTRIBUTES}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}
