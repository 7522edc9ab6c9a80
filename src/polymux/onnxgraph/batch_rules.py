"""What in a graph says that the batch is 1, besides its inputs, and how it is made to follow.

Constant targets of Reshape begin with 1. Constants are joined to the data along another axis (the class token of a
vision transformer), or are the initial state of a recurrent layer: they are repeated for each item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from polymux.onnxgraph.packages import import_onnx

DIMENSION = "batch"
_STATES = {"RNN": (5,), "GRU": (5,), "LSTM": (5, 6)}
"""Inputs of recurrent layers that are initial states, [directions, batch, size]."""
_EXPAND_SINCE = 8
"""Version of the operators that has Expand."""


def ranks_of(model: Any) -> dict[str, int]:
    """Number of dimensions of every tensor whose shape can be inferred."""
    inferred = import_onnx().shape_inference.infer_shapes(model).graph
    described = (*inferred.value_info, *inferred.input, *inferred.output)
    ranks = {tensor.name: len(tensor.dims) for tensor in inferred.initializer}
    for tensor in described:
        if tensor.type.tensor_type.HasField("shape"):
            ranks[tensor.name] = len(tensor.type.tensor_type.shape.dim)
    return ranks


def let_follow(model: Any, axes: Mapping[str, int], ranks: Mapping[str, int]) -> None:
    """Change a graph so that it keeps the batch that its inputs have.

    Parameters
    ----------
    model : onnx.ModelProto
        Is changed.
    axes : mapping of str to int
        The inputs whose batch is free now, and which of their extents it is.
    ranks : mapping of str to int
        Number of dimensions of tensors, where known.
    """
    graph = model.graph
    version = max((used.version for used in model.opset_import if used.domain in ("", "ai.onnx")), default=0)
    depending = set(axes)
    repeats: dict[tuple[str, int], str] = {}
    for node in graph.node:
        if not depending.intersection(node.input):
            continue
        depending.update(node.output)
        if node.op_type == "Reshape" and node.input[0] in depending:
            _free_reshape(graph, node)
        for at, axis in _lone_constants(node, depending, ranks) if version >= _EXPAND_SINCE else ():
            repeats.setdefault((node.input[at], axis), f"{node.input[at]}/{DIMENSION}_{axis}")
            node.input[at] = repeats[node.input[at], axis]
    if repeats:
        source, axis = next(iter(axes.items()))
        _add_repeats(graph, source, axis, repeats, ranks)


def _free_reshape(graph: Any, node: Any) -> None:
    """Let the constant target of a Reshape keep the batch."""
    attribute = next((found for found in node.attribute if found.name == "shape"), None)
    if attribute is not None:  # before version 5 of the operators
        attribute.ints[:] = _following(list(attribute.ints))
        return
    target = _constant(graph, node.input[1])
    if target is not None and (wanted := _following(target)) != target:
        name = f"{node.output[0]}/{DIMENSION}_shape"
        _add_constant(graph, name, wanted)
        node.input[1] = name


def _following(target: list[int]) -> list[int]:
    if not target or target[0] != 1:
        return target
    return [0 if -1 in target else -1, *target[1:]]


def _constant(graph: Any, name: str) -> list[int] | None:
    """Values of a constant of whole numbers."""
    to_array = import_onnx().numpy_helper.to_array
    for tensor in graph.initializer:
        if tensor.name == name:
            return [int(value) for value in to_array(tensor).ravel()]
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] == name and node.attribute[0].name == "value":
            return [int(value) for value in to_array(node.attribute[0].t).ravel()]
    return None


def _lone_constants(node: Any, depending: set[str], ranks: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Yield the inputs of a node that have one item however large the batch, and which extent that is."""
    if node.op_type == "Concat":
        along = next((found.i for found in node.attribute if found.name == "axis"), 0)
        for at, name in enumerate(node.input):
            if name not in depending and along % max(1, ranks.get(name, 0)) > 0:
                yield at, 0
    for at in _STATES.get(node.op_type, ()):
        if len(node.input) > at and node.input[at] and node.input[at] not in depending:
            yield at, 1


def _add_repeats(
    graph: Any, source: str, axis: int, repeats: Mapping[tuple[str, int], str], ranks: Mapping[str, int]
) -> None:
    """Add what makes the repeated constants: the batch is read from an input."""
    make = import_onnx().helper.make_node
    shape, which, batch = (f"{DIMENSION}/{what}" for what in ("shape", "axis", "size"))
    _add_constant(graph, which, [axis])
    order = [make("Shape", [source], [shape]), make("Gather", [shape, which], [batch])]
    waiting: dict[str, list[Any]] = {}
    for (name, at), made in repeats.items():
        before, after, target = (f"{made}/{what}" for what in ("before", "after", "target"))
        rank = ranks.get(name, at + 1)
        parts = []
        for part, count in ((before, at), (batch, -1), (after, rank - at - 1)):
            if count > 0:
                _add_constant(graph, part, [1] * count)
            if count:
                parts.append(part)
        waiting.setdefault(name, []).extend(
            [make("Concat", parts, [target], axis=0), make("Expand", [name, target], [made])]
        )
    computed = {output for node in graph.node for output in node.output}
    for name in sorted(waiting.keys() - computed):
        order += waiting.pop(name)
    for node in graph.node:
        order.append(node)
        for output in node.output:
            order += waiting.pop(output, [])
    nodes = [type(node).FromString(node.SerializeToString()) for node in order]
    del graph.node[:]
    graph.node.extend(nodes)


def _add_constant(graph: Any, name: str, values: list[int]) -> None:
    graph.initializer.append(import_onnx().numpy_helper.from_array(np.array(values, np.int64), name))
