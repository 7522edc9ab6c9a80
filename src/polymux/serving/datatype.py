"""Datatypes of the Open Inference Protocol and of ``config.pbtxt``, as dtypes of the core."""

from __future__ import annotations

from polymux.core.dtype import DType

__all__ = ["CONFIG_NAMES", "PROTOCOL_NAMES", "from_config", "from_protocol"]

#: Name of each dtype in requests and answers (Open Inference Protocol, "Tensor Data Types").
PROTOCOL_NAMES: dict[DType, str] = {
    DType.BOOL: "BOOL",
    DType.U8: "UINT8",
    DType.U16: "UINT16",
    DType.U32: "UINT32",
    DType.U64: "UINT64",
    DType.I8: "INT8",
    DType.I16: "INT16",
    DType.I32: "INT32",
    DType.I64: "INT64",
    DType.F16: "FP16",
    DType.F32: "FP32",
    DType.F64: "FP64",
    DType.BF16: "BF16",
}

#: Name of each dtype in a model configuration.
CONFIG_NAMES: dict[DType, str] = {dtype: f"TYPE_{name}" for dtype, name in PROTOCOL_NAMES.items()}

_FROM_PROTOCOL = {name: dtype for dtype, name in PROTOCOL_NAMES.items()}
_FROM_CONFIG = {name: dtype for dtype, name in CONFIG_NAMES.items()}


def from_protocol(name: str) -> DType | None:
    """Return the dtype of a datatype name such as ``"FP32"``; None for one that has no fixed size or is unknown."""
    return _FROM_PROTOCOL.get(name)


def from_config(name: str) -> DType | None:
    """Return the dtype of a configuration's ``data_type`` such as ``"TYPE_FP32"``; None when there is none."""
    return _FROM_CONFIG.get(name)
