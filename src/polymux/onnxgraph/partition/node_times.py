"""How long each node of a graph takes, and how large each tensor is: measured, or estimated from the shapes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from polymux.onnxgraph.cost import ITEM_NBYTES, attributes_of
from polymux.onnxgraph.inputs import Arrays
from polymux.onnxgraph.packages import import_onnx
from polymux.onnxgraph.partition.optimized_file import as_written, load_session
from polymux.onnxgraph.running import run_session
from polymux.perfmodel.operations import Node, Tensor

FLOPS_PER_S, BYTES_PER_S, NODE_NS = 3e10, 1e10, 3000.0
"""What a core does, for estimates: single-precision operations, bytes to and from memory, and a node's own time."""
LEAST_RUNS, MOST_RUNS, MOST_S = 5, 60, 1.0
"""A graph is run so often, and stopped after that time when the least has been done."""


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """What a tensor was in a run.

    Parameters
    ----------
    kind : str
        Type of its elements, as onnxruntime writes it: ``"float"``.
    shape : tuple of int
    """

    kind: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.described().nbytes

    def described(self, constant: bool = False) -> Tensor:
        """Describe it to whoever counts operations."""
        return Tensor(self.shape, ITEM_NBYTES[self.kind], constant)


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Times of all nodes of a graph in its order, and the tensors that they write.

    Parameters
    ----------
    times_ns : tuple of float
    tensors : mapping of str to SeenTensor
        Those of numbers.
    """

    times_ns: tuple[float, ...]
    tensors: Mapping[str, SeenTensor]


def measure(model: Any, arrays: Arrays, folder: Path, threads: int = 1, estimate: bool = False) -> NodeTimes:
    """Run a graph and see what its nodes do.

    Parameters
    ----------
    model : onnx.ModelProto
        Of `write_optimized`.
    arrays : dict of str to ndarray
        The model's inputs.
    folder : pathlib.Path
        Where its weights are.
    threads : int
        To run it on.
    estimate : bool
        Run it once, for the shapes, and count operations and bytes instead of time.

    Raises
    ------
    InvalidRequest
        If it does not run on these inputs.
    """
    named = type(model)()
    named.CopyFrom(model)
    for number, node in enumerate(named.graph.node):
        node.name = _name(number)
    path = folder / "timed.onnx"
    path.write_bytes(named.SerializeToString())
    options = as_written(threads)
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "times")
    session = load_session(path, options)
    end = time.monotonic() + MOST_S
    for number in range(1 if estimate else MOST_RUNS):
        if number >= LEAST_RUNS and time.monotonic() > end:
            break
        run_session(session, arrays)
    report = Path(session.end_profiling())
    events = json.loads(report.read_text())
    for file in (report, path):
        file.unlink()
    times, tensors = _read(events, model.graph.node)
    if estimate:
        times = _estimated(model.graph, arrays, tensors)
    return NodeTimes(tuple(times), tensors)


def _name(number: int) -> str:
    return f"polymux:{number}"


def _read(
    events: Sequence[Mapping[str, Any]], nodes: Sequence[Any]
) -> tuple[list[float], dict[str, SeenTensor]]:
    numbers = {_name(number): number for number in range(len(nodes))}
    durations: list[list[float]] = [[] for _ in nodes]
    tensors: dict[str, SeenTensor] = {}
    for event in events:
        name, _, rest = event.get("name", "").rpartition("_kernel_time")
        number = numbers.get(name)
        if number is None or rest:
            continue
        durations[number].append(event["dur"] * 1e3)
        written = [output for output in nodes[number].output if output]
        seen = event["args"].get("output_type_shape", [])
        for output, described in zip(written, seen, strict=False) if len(written) == len(seen) else ():
            for kind, shape in described.items():
                if kind in ITEM_NBYTES and ITEM_NBYTES[kind] >= 1:
                    tensors[output] = SeenTensor(kind, tuple(shape))
    return [median(its) if its else 0.0 for its in durations], tensors


def _estimated(graph: Any, arrays: Arrays, tensors: Mapping[str, SeenTensor]) -> list[float]:
    known = {name: seen.described() for name, seen in tensors.items()}
    known.update({name: Tensor(array.shape, array.itemsize) for name, array in arrays.items()})
    kinds = import_onnx().helper.tensor_dtype_to_np_dtype
    for weight in graph.initializer:
        known[weight.name] = Tensor(tuple(weight.dims), kinds(weight.data_type).itemsize, True)
    times = []
    for node in graph.node:
        inputs, outputs = (tuple(known.get(name) for name in names) for names in (node.input, node.output))
        counted = Node(node.op_type, inputs, outputs, attributes_of(node), node.name)
        times.append(NODE_NS + 1e9 * max(counted.flops / FLOPS_PER_S, counted.nbytes / BYTES_PER_S))
    return times
