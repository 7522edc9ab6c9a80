"""Checks of a kernel's operands: the same for NumPy arrays (cpu) and buffer views (opencl).

Every failed check raises `InvalidRequest` with the argument's name, its shape or dtype and the expected one. The
native versions in ``cpp/kernels`` make the same checks (``operands.hpp``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import KernelSpec
from polymux.core.task_view import BufferView

FLOATS = (DType.F32, DType.F64)
Scalars = Mapping[str, float | int | bool]


class Array(Protocol):
    """What NumPy arrays and buffer views have in common."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension."""
        ...

    @property
    def dtype(self) -> Any:
        """A NumPy dtype, or a `DType`."""
        ...


def named(spec: KernelSpec, buffers: Sequence[BufferView]) -> dict[str, BufferView]:
    """Pair a task's buffers with the names of the spec, and check that each has one of its dtypes."""
    params = (*spec.inputs, *spec.outputs)
    if len(params) != len(buffers):
        raise InvalidRequest(f"{len(buffers)} buffers were given, expected {len(params)}")
    for param, buffer in zip(params, buffers, strict=True):
        if param.dtypes and buffer.dtype not in param.dtypes:
            accepted = ", ".join(dtype.name_short for dtype in param.dtypes)
            raise InvalidRequest(
                f"{param.name} has dtype {buffer.dtype.name_short}, expected one of {accepted}"
            )
    return {param.name: buffer for param, buffer in zip(params, buffers, strict=True)}


def size(array: Array) -> int:
    """Number of elements."""
    return math.prod(array.shape)


def require_shape(arrays: Mapping[str, Array], name: str, expected: tuple[int, ...], reason: str) -> None:
    """Check an argument's shape."""
    if arrays[name].shape != expected:
        raise InvalidRequest(f"{name} has shape {arrays[name].shape}, expected {expected} ({reason})")


def require_rank(arrays: Mapping[str, Array], name: str, rank: int, layout: str) -> None:
    """Check an argument's number of dimensions."""
    if len(arrays[name].shape) != rank:
        raise InvalidRequest(f"{name} has shape {arrays[name].shape}, expected {rank} dimensions {layout}")


def require_same_dtypes(arrays: Mapping[str, Array]) -> None:
    """Check that all arguments have the dtype of the first."""
    first, *others = arrays
    for name in others:
        if arrays[name].dtype != arrays[first].dtype:
            raise InvalidRequest(
                f"{name} has dtype {_dtype_name(arrays[name])}, expected {_dtype_name(arrays[first])}"
                f" (that of {first})"
            )


def require_same_shapes(arrays: Mapping[str, Array]) -> None:
    """Check that all arguments have the shape of the first."""
    first, *others = arrays
    for name in others:
        require_shape(arrays, name, arrays[first].shape, f"that of {first}")


def require_apart(arrays: Mapping[str, Array], output: str, *inputs: str) -> None:
    """Check that an output shares no memory with the inputs."""
    for name in inputs:
        if same_memory(arrays[output], arrays[name]):
            raise InvalidRequest(f"{output} must not share memory with {name}; give it a buffer of its own")


def same_memory(one: Array, other: Array) -> bool:
    """Whether two arguments are the same buffer, or arrays that overlap."""
    if isinstance(one, BufferView) and isinstance(other, BufferView):
        return one.slot == other.slot and one.nbytes > 0 and other.nbytes > 0
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    return False


def _dtype_name(array: Array) -> str:
    dtype = array.dtype
    return dtype.name_short if isinstance(dtype, DType) else str(np.dtype(dtype).str.lstrip("<|="))
