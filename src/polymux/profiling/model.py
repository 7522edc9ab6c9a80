"""A model made ready to be measured: its key, its inputs, its batch made free, its costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polymux.core.errors import InvalidRequest
from polymux.onnxgraph.cost import nodes_of, optimized
from polymux.onnxgraph.dynamic_batch import NotBatchable, with_dynamic_batch
from polymux.onnxgraph.file import load_model, save_model
from polymux.onnxgraph.inputs import ItemInput, batch_of, item_inputs
from polymux.onnxgraph.output_shapes import OutputShapes, output_shapes
from polymux.profiles import NodeCost, ProfiledModel, model_key


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that is to be measured.

    Parameters
    ----------
    name : str
    path : pathlib.Path
        Its file.
    shapes, values : mapping
        Of its inputs; see `polymux.onnxgraph.inputs.item_inputs`.
    """

    name: str
    path: Path
    shapes: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that can be measured.

    Parameters
    ----------
    record : ProfiledModel
    path : pathlib.Path
        The file to run: the model's own, or the rewritten one.
    inputs : tuple of ItemInput
    outputs : OutputShapes
    costs : tuple of NodeCost
    why_fixed : str
        Why it can only be run with a batch of 1; empty when it can be run with any.
    """

    record: ProfiledModel
    path: Path
    inputs: tuple[ItemInput, ...]
    outputs: OutputShapes
    costs: tuple[NodeCost, ...]
    why_fixed: str = ""

    def batches(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the wanted batches that the model can be run with."""
        return (1,) if self.why_fixed else wanted


def prepare(source: ModelSource, folder: Path) -> PreparedModel:
    """Read a model, make its batch free when the file fixes it, and count what its nodes take.

    Parameters
    ----------
    source : ModelSource
    folder : pathlib.Path
        Where a rewritten file goes.

    Raises
    ------
    ConfigError
        If the file is no model, or the shape of an input is missing.
    InvalidRequest
        If the model does not run.
    DeviceUnavailable
        If onnx or onnxruntime is not installed.
    """
    key = model_key(source.path)
    model = load_model(source.path)
    inputs = item_inputs(str(source.path), model, source.shapes, source.values)
    path, why_fixed = source.path.resolve(), ""
    batching = "dynamic"
    if any(item.is_fixed for item in inputs):
        try:
            model = with_dynamic_batch(model, inputs)
        except NotBatchable as error:
            batching, why_fixed = "fixed", str(error)
        else:
            batching, path = "rewritten", folder / f"{key.removeprefix('sha256:')[:16]}.onnx"
            save_model(model, path)
    several = 1 if why_fixed else 2
    outputs = output_shapes(model, inputs, several)
    costs = _costs(model, inputs, several)
    weights = round(sum(cost.weight_nbytes for cost in costs))
    described = " ".join(map(str, inputs))
    record = ProfiledModel(key, source.name, str(source.path.resolve()), batching, weights, described)
    return PreparedModel(record, path, inputs, outputs, costs, why_fixed)


def _costs(model: Any, inputs: Sequence[ItemInput], several: int) -> tuple[NodeCost, ...]:
    """Count what the nodes of the optimized graph take, for the first item and for a further one."""
    graph = optimized(model)
    rng = np.random.default_rng(0)
    one = nodes_of(graph, batch_of(inputs, 1, rng))
    more = nodes_of(graph, batch_of(inputs, several, rng))
    if [node.op for node in one] != [node.op for node in more]:
        raise InvalidRequest("the model takes other branches for other batches; its nodes cannot be counted")
    return tuple(
        NodeCost(
            node.op,
            float(node.flops),
            float(other.flops - node.flops),
            float(node.nbytes),
            float(other.nbytes - node.nbytes),
            float(node.weight_nbytes),
            node.is_known,
        )
        for node, other in zip(one, more, strict=True)
    )
