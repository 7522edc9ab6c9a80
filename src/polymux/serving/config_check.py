"""Holding a model's configuration against the model: fill in what is missing, refuse what contradicts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from polymux.core.dtype import DType
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.serving.datatype import CONFIG_NAMES, from_config
from polymux.serving.errors import ModelLoadError
from polymux.serving.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput
from polymux.serving.signature import Extents, ModelSignature, TensorSignature
from polymux.serving.stages.settings import STAGE_PARAMETERS

__all__ = ["PARAMETERS", "PARTITION", "complete", "unused_settings"]

#: Key of ``parameters`` that says how a model is cut.
PARTITION = "partition"
#: Keys of ``parameters`` that a scheduler understands.
PARAMETERS = ("slo_ms", "priority", "weight")


_Tensor = ModelInput | ModelOutput

#: Settings that change how fast a model is, not what it answers, and have no effect in this version.
_UNUSED = (
    "optimization",
    "dynamic_batching",
    "instance_group",
    "model_warmup",
    "response_cache",
    "parameters",
)


def complete(config: ModelConfig, name: str, spec: KernelSpec) -> tuple[ModelConfig, ModelSignature]:
    """Complete a configuration from the model's own metadata, and check it.

    Parameters
    ----------
    config : ModelConfig
        What the operator wrote; may be empty.
    name : str
        The model's name.
    spec : KernelSpec
        Names, dtypes and shapes of the model file's inputs and outputs.

    Returns
    -------
    ModelConfig
        A copy with every input and output filled in.
    ModelSignature
        What requests are checked against.

    Raises
    ------
    ModelLoadError
        When the configuration contradicts the model; the message names the tensor and both values.
    """
    full = ModelConfig()
    full.CopyFrom(config)
    full.name = name
    full.backend, full.platform = "onnxruntime", "onnxruntime_onnx"
    full.default_model_filename = config.default_model_filename or "model.onnx"
    if full.version_policy.WhichOneof("policy_choice") is None:
        full.version_policy.latest.num_versions = 1
    batched = _check_batching(full, spec)
    if not full.input:
        full.input.extend(ModelInput(**_describe(param, batched)) for param in spec.inputs)
    if not full.output:
        full.output.extend(ModelOutput(**_describe(param, batched)) for param in spec.outputs)
    inputs = _match("input", full.input, spec.inputs, batched)
    if missing := [param.name for param in spec.inputs if param.name not in inputs]:
        raise ModelLoadError(
            f"the model's inputs {missing} are not in config.pbtxt; list all inputs, or none"
        )
    outputs = _match("output", full.output, spec.outputs, batched)
    in_order = {param.name: inputs[param.name] for param in spec.inputs}
    return full, ModelSignature(in_order, outputs, full.max_batch_size)


def unused_settings(config: ModelConfig, scheduled: bool = False) -> list[str]:
    """Return the names of settings in `config` that have no effect: in this version, or without a policy."""
    present = {field.name for field, _ in config.ListFields()}
    understood = {PARTITION, *STAGE_PARAMETERS, *(PARAMETERS if scheduled else ())}
    if set(config.parameters) <= understood:
        present -= {"parameters"}
    if scheduled:
        present -= {"dynamic_batching"}
    return [name for name in _UNUSED if name in present]


def _check_batching(config: ModelConfig, spec: KernelSpec) -> bool:
    if config.max_batch_size < 0:
        raise ModelLoadError(f"max_batch_size is {config.max_batch_size}; it must be 0 or more")
    if config.max_batch_size == 0:
        return False
    for param in (*spec.inputs, *spec.outputs):
        if param.shape is not None and (not param.shape or param.shape[0] is not None):
            raise ModelLoadError(
                f"max_batch_size is {config.max_batch_size} but the first extent of '{param.name}' is fixed "
                f"({_show(param.shape)}); set max_batch_size to 0, or export the model with a dynamic batch"
            )
    return True


def _describe(param: BufferParam, batched: bool) -> dict[str, Any]:
    extents = (None,) if param.shape is None else param.shape[1:] if batched else param.shape
    return {
        "name": param.name,
        "data_type": DataType.Value(CONFIG_NAMES[_dtype_of(param)]),
        "dims": [-1 if extent is None else extent for extent in extents],
    }


def _match(
    kind: str, tensors: Iterable[_Tensor], params: tuple[BufferParam, ...], batched: bool
) -> dict[str, TensorSignature]:
    by_name = {param.name: param for param in params}
    matched: dict[str, TensorSignature] = {}
    for tensor in tensors:
        param = by_name.get(tensor.name)
        if param is None:
            raise ModelLoadError(
                f"config.pbtxt names the {kind} '{tensor.name}', which the model does not have; "
                f"it has {sorted(by_name)}"
            )
        if tensor.name in matched:
            raise ModelLoadError(f"config.pbtxt lists the {kind} '{tensor.name}' twice")
        if tensor.is_shape_tensor or tensor.is_non_linear_format_io:
            raise ModelLoadError(
                f"{kind} '{tensor.name}': shape tensors and non-linear formats are not supported"
            )
        matched[tensor.name] = _check_tensor(kind, tensor, param, batched)
    return matched


def _check_tensor(kind: str, tensor: _Tensor, param: BufferParam, batched: bool) -> TensorSignature:
    dtype = _dtype_of(param)
    written = DataType.Name(tensor.data_type)
    if from_config(written) is not dtype:
        raise ModelLoadError(
            f"{kind} '{tensor.name}': config.pbtxt says data_type {written}, the model has {CONFIG_NAMES[dtype]}"
        )
    shape = model_shape = _extents(kind, tensor.name, tensor.dims, batched)
    if tensor.HasField("reshape"):
        model_shape = _extents(kind, tensor.name, tensor.reshape.shape, batched)
        if _size(shape) != _size(model_shape):
            raise ModelLoadError(
                f"{kind} '{tensor.name}': reshape {_show(model_shape)} has another number of elements than "
                f"dims {_show(shape)}"
            )
    if not _compatible(model_shape, param.shape):
        raise ModelLoadError(
            f"{kind} '{tensor.name}': config.pbtxt says {_show(model_shape)}"
            f"{' with the batch first' if batched else ''}, the model has {_show(param.shape)}"
        )
    if param.shape is None and not tensor.HasField("reshape") and shape == (None,):
        return TensorSignature(tensor.name, dtype, None, None)  # the model does not tell the rank
    return TensorSignature(tensor.name, dtype, shape, model_shape)


def _dtype_of(param: BufferParam) -> DType:
    if len(param.dtypes) != 1 or param.dtypes[0] not in CONFIG_NAMES:
        names = [dtype.name for dtype in param.dtypes]
        raise ModelLoadError(f"tensor '{param.name}' has the element type {names}, which cannot be served")
    return param.dtypes[0]


def _extents(kind: str, name: str, dims: Iterable[int], batched: bool) -> tuple[int | None, ...]:
    extents: list[int | None] = [None] if batched else []
    for extent in dims:
        if extent < -1:
            raise ModelLoadError(f"{kind} '{name}': extent {extent}; write a size, or -1 for any size")
        extents.append(None if extent == -1 else extent)
    return tuple(extents)


def _size(extents: tuple[int | None, ...]) -> tuple[int, int]:
    """Return the product of the fixed extents and the number of free ones."""
    fixed = [extent for extent in extents if extent is not None]
    return math.prod(fixed), len(extents) - len(fixed)


def _compatible(written: tuple[int | None, ...], model: Extents) -> bool:
    """Whether the configuration asks for nothing that the model cannot take: it may fix a free extent, not free one."""
    if model is None:
        return True
    return len(written) == len(model) and all(
        want is None or want == got for got, want in zip(written, model, strict=True)
    )


def _show(extents: Extents) -> str:
    if extents is None:
        return "any shape"
    return str([-1 if extent is None else extent for extent in extents])
