"""Nodes that all devices compute together: marking them in a model, and taking a model apart around them.

Such a node is one of ONNX' own (`OPS`) with the domain `DOMAIN` instead of the standard one; inputs, attributes and
meaning stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.packages import import_onnx
from polymux.onnxgraph.partition.flow import CutPoint, flow_of
from polymux.onnxgraph.partition.split import boundary, split

DOMAIN = "polymux"
OPS = ("Conv", "Gemm", "MatMul")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class HeavyNode:
    """A node that all devices compute together.

    Parameters
    ----------
    name, op : str
    reads : tuple of str
        Its inputs; empty names stand for what is left out.
    writes : str
        Its output.
    attributes : mapping
        By name, as Python and NumPy values.
    weights : mapping of str to ndarray
        Those of its inputs that are part of the model.
    """

    name: str
    op: str
    reads: tuple[str, ...]
    writes: str
    attributes: Mapping[str, Any]
    weights: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PlainPart:
    """What lies between such nodes.

    Parameters
    ----------
    model : onnx.ModelProto
    reads, writes : tuple of str
        Its inputs and outputs, in order.
    """

    model: Any
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def has_heavy_nodes(model: Any) -> bool:
    """Tell whether nodes of a model are marked."""
    return any(node.domain == DOMAIN for node in model.graph.node)


def mark(model: Any, names: Collection[str]) -> Any:
    """Return a model in which these nodes are computed by all devices together.

    Parameters
    ----------
    model : onnx.ModelProto
        Is not changed.
    names : collection of str
        Of the nodes, or of their first outputs where nodes have none.

    Raises
    ------
    InvalidRequest
        For a name that no node has, and for a node that cannot be: its operator, or padding that is not the same on
        both sides.
    """
    made = type(model)()
    made.CopyFrom(model)
    left = set(names)
    for node in made.graph.node:
        name = name_of(node)
        if name in left:
            left.discard(name)
            reason = why_not(node)
            if reason:
                raise InvalidRequest(
                    f"node {name!r} ({node.op_type}) cannot be computed by all devices: {reason}"
                )
            node.domain = DOMAIN
    if left:
        raise InvalidRequest(f"the model has no node {', '.join(sorted(left))}")
    made.opset_import.append(import_onnx().helper.make_opsetid(DOMAIN, _VERSION))
    return made


def plain(model: Any) -> Any:
    """Return the same model in ONNX' own nodes, which computes the same on one device.

    Raises
    ------
    InvalidRequest
        For a marked node that ONNX does not have.
    """
    made = type(model)()
    made.CopyFrom(model)
    for node in made.graph.node:
        if node.domain == DOMAIN:
            if node.op_type not in OPS:
                raise InvalidRequest(
                    f"node {name_of(node)!r}: domain {DOMAIN!r} has no {node.op_type}; it has {', '.join(OPS)}"
                )
            node.domain = ""
    kept = [opset for opset in made.opset_import if opset.domain != DOMAIN]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    return made


def take_apart(model: Any) -> Iterator[HeavyNode | PlainPart]:
    """Yield what runs one after the other in place of a model with marked nodes.

    Raises
    ------
    InvalidRequest
        If a marked node cannot be computed so, or ONNX cannot tell the types of what lies between.
    """
    onnx = import_onnx()
    ordinary = plain(model)
    marked = [at for at, node in enumerate(model.graph.node) if node.domain == DOMAIN]
    for at in marked:
        reason = why_not(ordinary.graph.node[at])
        if reason:
            raise InvalidRequest(f"node {name_of(model.graph.node[at])!r}: {reason}")
    described = onnx.shape_inference.infer_shapes(ordinary)
    weights = {tensor.name: tensor for tensor in described.graph.initializer}
    flow = flow_of(described)
    edges = sorted({edge for at in marked for edge in (at, at + 1)} - {0, len(flow.steps)})
    parts = split(described, flow, [CutPoint(edge, (), 0) for edge in edges], {})
    first = 0
    for end in [*edges, len(flow.steps)]:
        reads, writes = boundary(flow, first, end)
        if first in marked:
            next(parts)
            yield _heavy(described.graph.node[first], weights)
        else:
            known = {tensor.name for tensor in (*described.graph.input, *described.graph.output)}
            known |= {tensor.name for tensor in described.graph.value_info}
            if unknown := sorted({*reads, *writes} - known):
                raise InvalidRequest(f"the type of {', '.join(unknown)} cannot be told from the model")
            yield PlainPart(next(parts), reads, writes)
        first = end


def name_of(node: Any) -> str:
    """Return what a node is called: its name, else its first output."""
    return str(node.name or node.output[0])


def why_not(node: Any) -> str:
    """Say why a node cannot be computed by all devices together; empty when it can."""
    if node.op_type not in OPS:
        return f"only {', '.join(OPS)} can"
    values = attributes_of(node)
    if node.op_type == "Conv":
        if values.get("auto_pad", "NOTSET") not in ("NOTSET", ""):
            return f"its padding is {values['auto_pad']}; write it out as pads"
        pads = list(values.get("pads", [0, 0, 0, 0]))
        if len(pads) != 4:
            return "it is not two-dimensional"
        if pads[:2] != pads[2:]:
            return f"its padding {pads} differs from side to side"
    return ""


def attributes_of(node: Any) -> dict[str, Any]:
    """Read a node's attributes."""
    onnx = import_onnx()
    found = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        found[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return found


def _heavy(node: Any, weights: Mapping[str, Any]) -> HeavyNode:
    to_array = import_onnx().numpy_helper.to_array
    own = {name: np.asarray(to_array(weights[name])) for name in node.input if name in weights}
    return HeavyNode(name_of(node), node.op_type, tuple(node.input), node.output[0], attributes_of(node), own)
