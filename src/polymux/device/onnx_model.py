"""What an ONNX model takes and gives, as a kernel's parameters."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polymux.core.dtype import DType
from polymux.core.errors import DeviceUnavailable, InvalidRequest
from polymux.core.kernel_spec import BufferParam, KernelSpec
from polymux.core.status import TaskStatus
from polymux.device.protocol import LaunchError

Extent = int | str | None
"""A dimension: fixed, named (the same number wherever the name stands), or unknown."""

_TENSOR = re.compile(r"tensor\((\w+)\)")
_DTYPES = {
    "bool": DType.BOOL,
    "int8": DType.I8,
    "int16": DType.I16,
    "int32": DType.I32,
    "int64": DType.I64,
    "uint8": DType.U8,
    "uint16": DType.U16,
    "uint32": DType.U32,
    "uint64": DType.U64,
    "float16": DType.F16,
    "float": DType.F32,
    "double": DType.F64,
    "bfloat16": DType.BF16,
    "complex64": DType.C64,
    "complex128": DType.C128,
}
ONNX_TYPES = {
    DType.F32: 1,
    DType.U8: 2,
    DType.I8: 3,
    DType.U16: 4,
    DType.I16: 5,
    DType.I32: 6,
    DType.I64: 7,
    DType.BOOL: 9,
    DType.F16: 10,
    DType.F64: 11,
    DType.U32: 12,
    DType.U64: 13,
    DType.C64: 14,
    DType.C128: 15,
    DType.BF16: 16,
}
"""``TensorProto.DataType`` of the ONNX standard."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a model."""

    name: str
    dtype: DType
    shape: tuple[Extent, ...]

    def param(self) -> BufferParam:
        """Return it as a kernel's parameter; dimensions that are not fixed accept any extent."""
        shape = tuple(extent if isinstance(extent, int) else None for extent in self.shape)
        return BufferParam(self.name, (self.dtype,), shape)


def kernel_spec(path: str, name: str, doc: str = "") -> KernelSpec:
    """Make the spec of a kernel that runs a model.

    Parameters
    ----------
    path : str
        The model's file.
    name : str
        The kernel's.
    doc : str
        Its description; the model's own when empty.

    Returns
    -------
    KernelSpec
        Inputs and outputs have the model's names, types and shapes (None where a dimension is free).

    Raises
    ------
    DeviceUnavailable
        If onnxruntime is not installed.
    InvalidRequest
        If the file is no model, or the model has an input or output that is no tensor of numbers.

    Notes
    -----
    Loads the model once, without optimizing it: time and memory of reading its weights.
    """
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = load(runtime, path, options)
        inputs, outputs = tensors(path, session)
    except LaunchError as error:
        raise InvalidRequest(error.message) from error
    meta = session.get_modelmeta()
    text = doc or meta.description or meta.graph_description or f"ONNX model {os.path.basename(path)}."
    return KernelSpec(
        name,
        tuple(tensor.param() for tensor in inputs),
        tuple(tensor.param() for tensor in outputs),
        idempotent=True,
        doc=text,
    )


def tensors(path: str, session: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs of a loaded model.

    Raises
    ------
    LaunchError
        KERNEL_FAILED, if one of them is no tensor of numbers.
    """
    return (
        [_tensor(path, "input", node) for node in session.get_inputs()],
        [_tensor(path, "output", node) for node in session.get_outputs()],
    )


def load(runtime: Any, path: str, options: Any, providers: Sequence[Any] = ("CPUExecutionProvider",)) -> Any:
    """Load a model.

    Parameters
    ----------
    runtime : module
        onnxruntime.
    path : str
    options : onnxruntime.SessionOptions
    providers : sequence
        Execution providers, the preferred one first.

    Returns
    -------
    onnxruntime.InferenceSession

    Raises
    ------
    LaunchError
        KERNEL_FAILED, with onnxruntime's text.
    """
    if not os.path.isfile(path):
        raise LaunchError(TaskStatus.KERNEL_FAILED, f"model {path} does not exist; give its file")
    try:
        return runtime.InferenceSession(path, options, providers=list(providers))
    except Exception as error:  # onnxruntime's errors have no common class but this
        raise LaunchError(TaskStatus.KERNEL_FAILED, f"model {path} cannot be loaded: {error}") from error


def import_onnxruntime() -> Any:
    """Import onnxruntime, which only models need.

    Raises
    ------
    DeviceUnavailable
        If it is not installed, with the remedy.
    """
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise DeviceUnavailable(
            f"ONNX models need onnxruntime ({error}); install it with pip install 'polymux[onnx]'"
        ) from error


def _tensor(path: str, side: str, node: Any) -> Tensor:
    found = _TENSOR.fullmatch(node.type)
    if found is None or found[1] not in _DTYPES:
        kind = "strings" if node.type == "tensor(string)" else f"type {node.type}"
        raise LaunchError(
            TaskStatus.KERNEL_FAILED,
            f"model {path}: {side} {node.name!r} is of {kind}; buffers hold tensors of numbers only, so split the"
            " model before this point or convert it",
        )
    return Tensor(node.name, _DTYPES[found[1]], tuple(node.shape))
