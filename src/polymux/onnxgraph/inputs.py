"""What one item of a batch looks like, and arrays of several of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.errors import ConfigError
from polymux.onnxgraph.packages import import_onnx

BATCH = "N"
"""How the batch is written in a shape: ``Nx3x224x224``."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ItemInput:
    """One input of a model.

    Parameters
    ----------
    name : str
    dtype : numpy.dtype
    shape : tuple of int
        With 1 where the batch is.
    axis : int, optional
        Which extent is the batch; None: the input is the same whatever the batch.
    low, high : float
        Its values lie between them, both included for integers.
    is_fixed : bool
        Whether the file says that the batch is 1.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    axis: int | None
    low: float = 0.0
    high: float = 1.0
    is_fixed: bool = False

    def batch_shape(self, batch: int) -> tuple[int, ...]:
        """Shape of a batch."""
        return tuple(batch if at == self.axis else extent for at, extent in enumerate(self.shape))

    def values(self, batch: int, rng: np.random.Generator) -> NDArray[Any]:
        """Make values for a batch."""
        shape = self.batch_shape(batch)
        if self.dtype.kind == "f":
            return rng.uniform(self.low, self.high, shape).astype(self.dtype)
        if self.dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(self.dtype)
        return rng.integers(math.ceil(self.low), math.floor(self.high) + 1, shape).astype(self.dtype)

    def __str__(self) -> str:
        extents = [BATCH if at == self.axis else str(extent) for at, extent in enumerate(self.shape)]
        return f"{self.name}={'x'.join(extents) or 'scalar'}"


def item_inputs(
    source: str,
    model: Any,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    values: Mapping[str, tuple[float, float]] | None = None,
) -> tuple[ItemInput, ...]:
    """Say what one item of a model's batch looks like.

    Parameters
    ----------
    source : str
        The model's file, for errors.
    model : onnx.ModelProto
    shapes : mapping of str to sequence of (int or "N"), optional
        Shapes of inputs, with ``"N"`` where the batch is. Needed where the file leaves another extent free than the
        first; otherwise the first extent is the batch when it is free or 1.
    values : mapping of str to (float, float), optional
        Lowest and highest value of inputs; 0 and 1 by default.

    Raises
    ------
    ConfigError
        If a shape is missing or does not fit, or an input is no tensor of numbers.
    """
    shapes, values = shapes or {}, values or {}
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [tensor for tensor in model.graph.input if tensor.name not in weights]
    names = {tensor.name for tensor in inputs}
    for given in (*shapes, *values):
        if given not in names:
            remedy = f"the model has no such input; it has {', '.join(sorted(names)) or 'none'}"
            raise ConfigError(source, "input", given, remedy)
    made = tuple(
        _item_input(source, tensor, shapes.get(tensor.name), values.get(tensor.name)) for tensor in inputs
    )
    if not any(item.axis is not None for item in made):
        remedy = "say where the batch is: --shape NAME=Nx3x224x224"
        raise ConfigError(source, "inputs", ", ".join(map(str, made)) or "none", remedy)
    return made


def batch_of(inputs: Sequence[ItemInput], batch: int, rng: np.random.Generator) -> Arrays:
    """Make the inputs of a batch."""
    return {item.name: item.values(batch, rng) for item in inputs}


def join(inputs: Sequence[ItemInput], items: Sequence[Arrays]) -> Arrays:
    """Make one batch of several items; what is the same for every batch is taken from the first."""
    return {
        item.name: items[0][item.name]
        if item.axis is None
        else np.concatenate([arrays[item.name] for arrays in items], axis=item.axis)
        for item in inputs
    }


def _item_input(
    source: str, tensor: Any, shape: Sequence[int | str] | None, values: tuple[float, float] | None
) -> ItemInput:
    dtype = _dtype(source, tensor)
    declared = _declared(tensor)
    if shape is None:
        shape = _default_shape(source, tensor.name, declared)
    elif len(shape) != len(declared):
        remedy = f"the input has {len(declared)} extents; write all of them"
        raise ConfigError(source, f"shape of {tensor.name}", _text(shape), remedy)
    axis = next((at for at, extent in enumerate(shape) if extent == BATCH), None)
    extents = tuple(1 if extent == BATCH else int(extent) for extent in shape)
    for at, (extent, known) in enumerate(zip(extents, declared, strict=True)):
        if known is not None and extent != known:
            what = "the batch there; it is fixed at" if at == axis else f"{extent} there; it is"
            remedy = f"extent {at} cannot be {what} {known}"
            raise ConfigError(source, f"shape of {tensor.name}", _text(shape), remedy)
    low, high = _values(source, tensor.name, dtype, values or (0.0, 1.0))
    is_fixed = axis is not None and declared[axis] == 1
    return ItemInput(tensor.name, dtype, extents, axis, low, high, is_fixed)


def _values(source: str, name: str, dtype: np.dtype[Any], values: tuple[float, float]) -> tuple[float, float]:
    """Check that an input can have values between two."""
    low, high = values
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= low or not high <= limits.max or math.ceil(low) > math.floor(high):
            remedy = f"give whole numbers that {dtype} holds, {limits.min} to {limits.max}"
            raise ConfigError(source, f"values of {name}", f"{low:g}..{high:g}", remedy)
    return low, high


def _dtype(source: str, tensor: Any) -> np.dtype[Any]:
    onnx = import_onnx()
    kind = tensor.type.tensor_type.elem_type
    try:
        dtype: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except (KeyError, TypeError):
        dtype = np.dtype(object)
    if dtype.kind not in "fiub":
        value = onnx.TensorProto.DataType.Name(kind).lower() if kind else "no tensor"
        remedy = "only models whose inputs are tensors of numbers can be measured; split the model behind this input"
        raise ConfigError(source, f"type of input {tensor.name}", value, remedy)
    return dtype


def _declared(tensor: Any) -> tuple[int | None, ...]:
    """Extents of an input as the file says them, None where it leaves them free."""
    dims = tensor.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.dim_value > 0 else None for dim in dims)


def _default_shape(source: str, name: str, declared: tuple[int | None, ...]) -> Sequence[int | str]:
    shape: list[int | str] = []
    for at, extent in enumerate(declared):
        if at == 0 and extent in (None, 1):
            shape.append(BATCH)
        elif extent is None:
            free = _text([known or "?" for known in declared])
            remedy = (
                f"the model leaves extents free; give them, such as --shape {name}={_example(declared)}, or in a model"
                " repository as dims with max_batch_size"
            )
            raise ConfigError(source, f"shape of {name}", free, remedy)
        else:
            shape.append(extent)
    return shape


def _example(declared: tuple[int | None, ...]) -> str:
    return _text([known or (BATCH if at == 0 else 224) for at, known in enumerate(declared)])


def _text(shape: Sequence[int | str]) -> str:
    return "x".join(map(str, shape)) or "scalar"
