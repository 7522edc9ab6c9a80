"""The graph of a module as torch.fx sees it, how long each operation takes, and where it can be cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node, symbolic_trace
from torch.nn import Module

_REPEATS = 3


@dataclass(frozen=True, slots=True)
class TracedModule:
    """A module as a chain of operations.

    Parameters
    ----------
    graph : GraphModule
        Shares all parameters and submodules with the module.
    nodes : tuple of Node
        Its operations in order.
    times_ns : tuple of int
        What each took forward, the least of some runs.
    cut_nbytes : mapping of int to int
        Positions after an operation where only tensors cross, with their bytes.
    """

    graph: GraphModule
    nodes: tuple[Node, ...]
    times_ns: tuple[int, ...]
    cut_nbytes: Mapping[int, int]


def trace(model: Module, example: Sequence[Any]) -> TracedModule:
    """Trace a module in its present mode and time its operations.

    Parameters
    ----------
    model : Module
    example : sequence
        Its arguments.

    Raises
    ------
    Exception
        Whatever torch.fx or the module itself raises when it cannot be traced.
    """
    graph = symbolic_trace(model)
    nodes = tuple(
        node for node in graph.graph.nodes if node.op in ("call_module", "call_function", "call_method")
    )
    runs = []
    with undisturbed(model):
        for _ in range(_REPEATS):
            run = _Timed(graph)
            run.run(*example)
            runs.append(run)
    times = tuple(min(run.times_ns[node] for run in runs) for node in nodes)
    return TracedModule(graph, nodes, times, _crossings(graph, nodes, runs[-1].nbytes))


@contextmanager
def undisturbed(model: Module) -> Iterator[None]:
    """Run a module without gradients; afterwards its buffers and PyTorch's generator are as before."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            yield
        finally:
            for buffer, copy in before:
                buffer.copy_(copy)


class _Timed(Interpreter):
    """Runs a graph node by node and notes times and sizes."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.times_ns: dict[Node, int] = {}
        self.nbytes: dict[Node, int | None] = {}

    def run_node(self, node: Node) -> Any:
        began = perf_counter_ns()
        result = super().run_node(node)
        self.times_ns[node] = perf_counter_ns() - began
        self.nbytes[node] = result.nbytes if isinstance(result, Tensor) else None
        return result


def _crossings(
    graph: GraphModule, nodes: Sequence[Node], nbytes: Mapping[Node, int | None]
) -> dict[int, int]:
    """Find after which operations nothing but tensors is still needed, and how many bytes these have."""
    position = {node: index for index, node in enumerate(nodes)}
    last_use: dict[int, list[Node]] = {}
    alive: set[Node] = set()
    for node in graph.graph.nodes:
        if node.op in ("output", "get_attr") or not node.users:
            continue
        last = max(position.get(user, len(nodes)) for user in node.users)
        last_use.setdefault(last, []).append(node)
        if node.op == "placeholder":
            alive.add(node)
    found = {}
    for index, node in enumerate(nodes):
        if node.users:
            alive.add(node)
        alive.difference_update(last_use.get(index, ()))
        sizes = [nbytes[other] for other in alive]
        if sizes and None not in sizes:
            found[index] = sum(size for size in sizes if size is not None)
    return found
