"""Which node of a graph reads and writes what, and between which nodes it can be cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST_TENSORS = 4
"""Tensors that a cut may carry: every part is one task, with room for 16 buffers."""


@dataclass(frozen=True, slots=True)
class Step:
    """A node.

    Parameters
    ----------
    name, op : str
        What people know it by.
    reads : tuple of str
        Tensors that it or a graph inside of it uses, without what is made inside.
    writes : tuple of str
    """

    name: str
    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """A graph as a sequence of nodes.

    Parameters
    ----------
    steps : tuple of Step
        In an order in which they can run.
    inputs, outputs : tuple of str
        Of the model.
    weights : frozenset of str
        Tensors that are part of the model.
    """

    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: frozenset[str]

    def crossing(self) -> Iterator[tuple[str, ...]]:
        """Yield for each place between two nodes, from the first on, the tensors made before it and used after it.

        Inputs of the model are not among them: whoever has the model's inputs can give them to any part.
        """
        last = {name: at for at, step in enumerate(self.steps) for name in step.reads}
        alive: dict[str, int] = {}
        for at, step in enumerate(self.steps[:-1]):
            alive.update({name: last[name] for name in step.writes if last.get(name, -1) > at})
            alive = {name: use for name, use in alive.items() if use > at}
            yield tuple(alive)


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A place where a graph can be cut.

    Parameters
    ----------
    before : int
        Number of the first node behind it.
    tensors : tuple of str
        What crosses it.
    nbytes : int
        Bytes of these for one item.
    """

    before: int
    tensors: tuple[str, ...]
    nbytes: int


def flow_of(model: Any) -> Flow:
    """Read a graph.

    Parameters
    ----------
    model : onnx.ModelProto
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    weights |= {tensor.values.name for tensor in graph.sparse_initializer}
    return Flow(
        tuple(
            Step(
                node.name or node.op_type,
                node.op_type,
                tuple(dict.fromkeys(name for name in _reads(node) if name)),
                tuple(name for name in node.output if name),
            )
            for node in graph.node
        ),
        tuple(tensor.name for tensor in graph.input if tensor.name not in weights),
        tuple(tensor.name for tensor in graph.output),
        frozenset(weights),
    )


def cut_points(flow: Flow, nbytes: Mapping[str, int]) -> list[CutPoint]:
    """List the places where few tensors cross.

    Parameters
    ----------
    flow : Flow
    nbytes : mapping of str to int
        Sizes of the tensors that can be handed from one part to the next; no cut goes through another one.
    """
    return [
        CutPoint(at, tensors, sum(nbytes[name] for name in tensors))
        for at, tensors in enumerate(flow.crossing(), 1)
        if 0 < len(tensors) <= MOST_TENSORS and all(name in nbytes for name in tensors)
    ]


def _reads(node: Any) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        inner = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
        for graph in inner:
            made = {tensor.name for tensor in (*graph.input, *graph.initializer)}
            made |= {name for its in graph.node for name in its.output}
            used = [name for its in graph.node for name in _reads(its)]
            used += [tensor.name for tensor in graph.output]
            yield from (name for name in used if name not in made)
