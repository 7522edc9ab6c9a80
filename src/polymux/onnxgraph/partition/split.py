"""Makes a model of each part of a graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polymux.onnxgraph.packages import import_onnx
from polymux.onnxgraph.partition.flow import CutPoint, Flow
from polymux.onnxgraph.partition.node_times import SeenTensor

_KINDS = {"bfloat16": "BFLOAT16"}


def split(
    model: Any, flow: Flow, cuts: Sequence[CutPoint], tensors: Mapping[str, SeenTensor]
) -> Iterator[Any]:
    """Make the models, in the order in which they run.

    Parameters
    ----------
    model : onnx.ModelProto
        Is not changed. Weights that lie in another file stay there.
    flow : Flow
        Of the model.
    cuts : sequence of CutPoint
        In order.
    tensors : mapping of str to SeenTensor
        What crosses the cuts.

    Yields
    ------
    onnx.ModelProto
        Its inputs are inputs of the model and outputs of parts before it, under the names that they have in the graph.

    Notes
    -----
    Copies nodes only: milliseconds for a model of hundreds.
    """
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    described = {tensor.name: tensor for tensor in (*graph.input, *graph.output, *graph.value_info)}
    edges = [0, *(cut.before for cut in cuts), len(flow.steps)]
    for first, end in itertools.pairwise(edges):
        reads, writes = boundary(flow, first, end)
        made = empty_like(model, f"nodes {first} to {end - 1}")
        made.graph.node.extend(graph.node[first:end])
        used = dict.fromkeys(name for step in flow.steps[first:end] for name in step.reads)
        made.graph.initializer.extend(weights[name] for name in used if name in weights)
        made.graph.sparse_initializer.extend(sparse[name] for name in used if name in sparse)
        made.graph.input.extend(_description(name, described, tensors) for name in reads)
        made.graph.output.extend(_description(name, described, tensors) for name in writes)
        inside = {name for step in flow.steps[first:end] for name in step.writes} - set(writes)
        made.graph.value_info.extend(its for its in graph.value_info if its.name in inside)
        yield made


def boundary(flow: Flow, first: int, end: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Say what the nodes from one to before another one take from outside, and what others need of them."""
    inside = flow.steps[first:end]
    made = {name for step in inside for name in step.writes}
    wanted = {name for step in flow.steps[end:] for name in step.reads} | set(flow.outputs)
    used = dict.fromkeys(name for step in inside for name in step.reads)
    reads = tuple(name for name in used if name not in made and name not in flow.weights)
    return reads, tuple(name for step in inside for name in step.writes if name in wanted)


def empty_like(model: Any, name: str) -> Any:
    """Make a model without a graph that is otherwise like another one."""
    made = type(model)()
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(made, field.name).extend(value)
        else:
            setattr(made, field.name, value)
    made.ir_version = max(made.ir_version, 4)  # before that, weights are inputs
    made.graph.name = name
    return made


def _description(name: str, described: Mapping[str, Any], tensors: Mapping[str, SeenTensor]) -> Any:
    """Describe an input or output of a part, with the extents that are the same for all inputs where that is known."""
    found, seen = described.get(name), tensors.get(name)
    if seen is None:
        return found  # an input or output of the model
    dims = found.type.tensor_type.shape.dim if found is not None else ()
    if found is not None and found.type.tensor_type.elem_type and len(dims) == len(seen.shape):
        return found
    onnx = import_onnx()
    kind = _KINDS.get(seen.kind) or _element_type(seen.kind)
    return onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), [None] * len(seen.shape))


def _element_type(kind: str) -> str:
    return kind.upper()
