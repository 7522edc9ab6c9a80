"""Frees the batch of a model whose file fixes it at 1, and proves that items then do not mix.

The first extent of every input gets a name, and what the graph says about it elsewhere is made to follow
(`batch_rules`). Whether it was right is not argued but tried: items run alone in the model as it was have to give what
they give together in the rewritten one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import InvalidRequest, PolymuxError
from polymux.onnxgraph.batch_rules import DIMENSION, let_follow, ranks_of
from polymux.onnxgraph.inputs import Arrays, ItemInput, batch_of, join
from polymux.onnxgraph.running import run

_ITEMS = 3
_TOLERANCE = 5e-3
"""Largest difference between alone and together, relative to the largest value of the output."""


class NotBatchable(PolymuxError):
    """A model cannot take more than one item at a time; the message says why."""


def with_dynamic_batch(model: Any, inputs: Sequence[ItemInput]) -> Any:
    """Return a copy of a model whose batch is free, with the same results for each item.

    Parameters
    ----------
    model : onnx.ModelProto
        Is not changed.
    inputs : sequence of ItemInput
        Of the model, those whose batch is fixed say so.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    NotBatchable
        If items would not come out as they do alone.
    DeviceUnavailable
        If onnxruntime is not installed.

    Notes
    -----
    Runs the model four times to prove the result.
    """
    made = type(model)()
    made.CopyFrom(model)
    graph = made.graph
    if made.ir_version < 4:  # weights were inputs then; as such they would count as not constant
        made.ir_version = 4
        weights = {tensor.name for tensor in graph.initializer}
        kept = [tensor for tensor in graph.input if tensor.name not in weights]
        del graph.input[:]
        graph.input.extend(kept)
    axes = {item.name: item.axis for item in inputs if item.is_fixed and item.axis is not None}
    for tensor in graph.input:
        if (axis := axes.get(tensor.name)) is not None:
            _name_extent(tensor, axis)
    for tensor in graph.output:
        _forget_extents(tensor)
    del graph.value_info[:]
    let_follow(made, axes, ranks_of(model))
    prove(model, made, inputs)
    return made


def prove(original: Any, rewritten: Any, inputs: Sequence[ItemInput]) -> None:
    """Compare items alone in one model with the same items as a batch in another.

    Raises
    ------
    NotBatchable
        With the difference.
    DeviceUnavailable
        If onnxruntime is not installed.
    """
    rng = np.random.default_rng(0)
    items = [batch_of(inputs, 1, rng) for _ in range(_ITEMS)]
    together = join(inputs, items)
    for item in inputs:  # what does not belong to an item is the same for all
        if item.axis is None:
            for arrays in items:
                arrays[item.name] = together[item.name]
    alone = [_run(original, arrays, "the model fails on one item") for arrays in items]
    whole = _run(rewritten, together, f"it fails on a batch of {_ITEMS} with its batch made free")
    for name, result in whole.items():
        _compare(name, [outputs[name] for outputs in alone], result)


def _compare(name: str, alone: Sequence[NDArray[Any]], whole: NDArray[Any]) -> None:
    if alone[0].ndim != whole.ndim:
        raise NotBatchable(
            f"output {name!r} has shape {alone[0].shape} for one item and {whole.shape} for {_ITEMS}"
        )
    grown = [at for at in range(whole.ndim) if whole.shape[at] == _ITEMS * alone[0].shape[at]]
    if len(grown) != 1 or any(
        whole.shape[at] != alone[0].shape[at] for at in range(whole.ndim) if at not in grown
    ):
        raise NotBatchable(
            f"output {name!r} has shape {alone[0].shape} for one item and {whole.shape} for {_ITEMS}: it does not grow"
            " with the batch"
        )
    expected = np.concatenate(alone, axis=grown[0])
    if expected.dtype.kind == "f":
        largest = float(np.max(np.abs(expected), initial=0.0))
        same = np.allclose(whole, expected, rtol=_TOLERANCE, atol=_TOLERANCE * largest, equal_nan=True)
    else:
        same = np.array_equal(whole, expected)
    if not same:
        raise NotBatchable(
            f"output {name!r} of an item changes with the others of its batch: the graph mixes them"
        )


def _run(model: Any, arrays: Arrays, problem: str) -> Arrays:
    try:
        return run(model, arrays)
    except InvalidRequest as error:
        raise NotBatchable(f"{problem}: {error}") from error


def _name_extent(tensor: Any, axis: int) -> None:
    extent = tensor.type.tensor_type.shape.dim[axis]
    extent.Clear()
    extent.dim_param = DIMENSION


def _forget_extents(tensor: Any) -> None:
    """Make the extents of 1 of an output free: which of them is the batch is seen when it runs."""
    for at, extent in enumerate(tensor.type.tensor_type.shape.dim):
        if extent.dim_value == 1 or not (extent.dim_value or extent.dim_param):
            extent.Clear()
            if at == 0:
                extent.dim_param = DIMENSION
