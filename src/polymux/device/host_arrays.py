"""Operands as NumPy arrays, for everything that the host's cores compute."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access, BufferView, shape_nbytes
from polymux.device.protocol import LaunchError, Operand, Shapes


def operand_array(operand: Operand) -> NDArray[Any]:
    """Return the operand's elements, typed and shaped, without copy."""
    if operand.array is not None:
        return operand.array
    assert operand.memory is not None, "an operand lies somewhere"
    return typed(operand.memory, operand.view)


def typed(memory: NDArray[np.uint8], view: BufferView) -> NDArray[Any]:
    """See the bytes at the beginning of `memory` as the elements of `view`; read-only unless it may be written.

    Notes
    -----
    bfloat16 appears as uint16 unless a package has taught NumPy the type.
    """
    array = memory[: view.nbytes].view(numpy_dtype(view.dtype)).reshape(view.shape)
    if not view.access & Access.WRITE:
        array.flags.writeable = False
    return array


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type of the same size: bfloat16 is uint16 where NumPy does not know it."""
    try:
        return dtype.to_numpy()
    except InvalidRequest:
        return np.dtype(np.uint16)


def check_shapes(spec: KernelSpec, shapes: Shapes, operands: Sequence[Operand]) -> Shapes | None:
    """Check the shapes that an implementation says its outputs have.

    Parameters
    ----------
    spec : KernelSpec
    shapes : list of tuple of int
        One per output.
    operands : sequence of Operand
        Inputs, then outputs.

    Returns
    -------
    list of tuple of int, or None
        None when they are those of the buffers.

    Raises
    ------
    LaunchError
        KERNEL_FAILED when they cannot be; OUTPUT_TOO_SMALL, with the size that is needed, when one does not fit.
    """
    outputs = operands[len(spec.inputs) :]
    if len(shapes) != len(outputs):
        raise LaunchError(
            TaskStatus.KERNEL_FAILED,
            f"it returned {len(shapes)} shapes for {len(outputs)} outputs: {shapes!r:.200}",
        )
    checked: Shapes = []
    for index, (shape, operand) in enumerate(zip(shapes, outputs, strict=True)):
        name = spec.outputs[index].name if index < len(spec.outputs) else f"output {index}"
        checked.append(_checked_shape(name, shape, operand.view))
    return None if checked == [operand.view.shape for operand in outputs] else checked


def _checked_shape(name: str, shape: Sequence[SupportsIndex], view: BufferView) -> tuple[int, ...]:
    try:
        extents = tuple(operator.index(extent) for extent in shape)
        nbytes = shape_nbytes(extents, view.dtype)
    except (TypeError, InvalidRequest) as error:
        raise LaunchError(
            TaskStatus.KERNEL_FAILED,
            f"it returned {shape!r:.200} as the shape of {name!r} ({error})",
        ) from error
    require_room(name, extents, nbytes, view)
    return extents


def require_room(name: str, shape: tuple[int, ...], nbytes: int, view: BufferView) -> None:
    """Check that a result fits into its buffer.

    Raises
    ------
    LaunchError
        OUTPUT_TOO_SMALL, with the size and shape that are needed.
    """
    if nbytes > view.nbytes:
        raise LaunchError(
            TaskStatus.OUTPUT_TOO_SMALL,
            f"output {name!r} has shape {shape} and needs {nbytes} bytes; the buffer"
            f" has {view.nbytes} (shape {view.shape}); give a buffer of at least {nbytes} bytes",
        )
