"""Nodes of ONNX models that all devices compute together, on a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polymux.client.placed import PlacedArray
from polymux.coexec.functions import conv2d, matmul
from polymux.coexec.operation import Array
from polymux.coexec.session import Session
from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.cost import nodes_of
from polymux.onnxgraph.file import load_model, save_model
from polymux.onnxgraph.heavy import HeavyNode, mark, name_of, why_not
from polymux.onnxgraph.inputs import Arrays

LEAST_FLOPS = 1e9
"""Operations from which on a node is worth to be shared among devices."""


class SessionNode:
    """A node with its weights in shared memory.

    Parameters
    ----------
    session : Session
    node : HeavyNode
    """

    def __init__(self, session: Session, node: HeavyNode) -> None:
        self.node = node
        self._session = session
        self._weights: dict[str, Array] = {}
        for at, name in enumerate(node.reads):
            if name in node.weights:
                self._weights[name] = session.array(_ready(node, at, node.weights[name]))

    @property
    def reads(self) -> tuple[str, ...]:
        """Tensors that it takes, without its weights."""
        return tuple(name for name in self.node.reads if name and name not in self._weights)

    def run(self, values: Mapping[str, Array]) -> PlacedArray:
        """Compute it.

        Parameters
        ----------
        values : mapping of str to ndarray
            What it reads.

        Raises
        ------
        InvalidRequest
            For shapes that do not fit.
        """
        inputs = [None if not name else self._weights.get(name, values.get(name)) for name in self.node.reads]
        first, second, *more = inputs
        third = more[0] if more else None
        assert first is not None
        assert second is not None
        result = self._computed(first, second, third)
        return result if isinstance(result, PlacedArray) else self._session.array(np.asarray(result))

    def _computed(self, first: Array, second: Array, third: Array | None) -> Any:
        given = self.node.attributes
        if self.node.op == "Conv":
            return conv2d(
                first,
                second,
                third,
                stride=given.get("strides", 1),
                padding=list(given.get("pads", [0, 0, 0, 0]))[:2],
                dilation=given.get("dilations", 1),
                groups=given.get("group", 1),
                session=self._session,
            )
        if self.node.op == "MatMul":
            return matmul(first, second, session=self._session)
        if self.node.op != "Gemm":
            raise InvalidRequest(f"{self.node.name}: no node {self.node.op} is computed by all devices")
        left = first.T if given.get("transA", 0) else first
        stored = self.node.reads[1] in self._weights
        right = second.T if given.get("transB", 0) and not stored else second
        result = matmul(left, right, session=self._session)
        if given.get("alpha", 1.0) != 1.0:
            result *= np.float32(given["alpha"])
        if third is not None:
            result += third if given.get("beta", 1.0) == 1.0 else np.float32(given["beta"]) * third
        return result


def mark_model(
    source: str | Path, target: str | Path, inputs: Arrays, least_flops: float = LEAST_FLOPS
) -> tuple[str, ...]:
    """Write a model in which the heavy layers are computed by all devices together; `polymux serve` does so.

    Parameters
    ----------
    source, target : str or Path
        Files of models.
    inputs : mapping of str to ndarray
        Inputs of a usual size, for which the operations of the nodes are counted.
    least_flops : float
        Operations from which on a node is heavy.

    Returns
    -------
    tuple of str
        The nodes.

    Raises
    ------
    ConfigError
        If a file cannot be read or written.
    InvalidRequest
        If the model does not run on the inputs, or has no such node.
    """
    model = load_model(source)
    flops = {node.name: node.flops for node in nodes_of(model, inputs)}
    names = tuple(
        name_of(node)
        for number, node in _numbered(model.graph)
        if not why_not(node) and flops.get(f"n{number}", 0) >= least_flops
    )
    if not names:
        raise InvalidRequest(f"{source} has no Conv, Gemm or MatMul of {least_flops:g} operations or more")
    save_model(mark(model, names), Path(target))
    return names


def _numbered(graph: Any) -> Iterator[tuple[int, Any]]:
    """Yield the nodes of a graph, not those inside them, with the numbers that `nodes_of` names them by."""
    number = 0
    for node in graph.node:
        yield number, node
        number += 1 + _inside(node)


def _inside(node: Any) -> int:
    graphs = [
        graph
        for attribute in node.attribute
        for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ()))
    ]
    return sum(1 + _inside(inner) for graph in graphs for inner in graph.node)


def _ready(node: HeavyNode, at: int, weight: Array) -> Array:
    """Lay a weight out as it is used, once."""
    if node.op == "Gemm" and at == 1 and node.attributes.get("transB", 0):
        return np.ascontiguousarray(weight.T)
    return weight
