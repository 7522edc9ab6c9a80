"""Runs a loaded ONNX model on operands: inputs are read and outputs written where the buffers lie."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import shape_nbytes
from polymux.device.cores import bound_to
from polymux.device.host_arrays import check_shapes, operand_array, require_room
from polymux.device.onnx_model import ONNX_TYPES, Tensor
from polymux.device.onnx_session import OnnxSession
from polymux.device.protocol import LaunchError, Operand, Scalars, Shapes

KEPT = 64
"""Places of operands for which a model's binding is kept."""


class PreparedOnnx:
    """A model, ready to run in a thread on `core`.

    Parameters
    ----------
    spec : KernelSpec
    session : OnnxSession
    core : int or None
        Core that the calling thread keeps to meanwhile; None: it stays where it may be.

    Notes
    -----
    How inputs and outputs are bound is kept by where they lie and their shapes: parts of a model hand each other the
    same buffers at every request. What is kept holds addresses, no memory: it is used only for operands that lie there.
    """

    def __init__(self, spec: KernelSpec, session: OnnxSession, core: int | None) -> None:
        self._spec = spec
        self._session = session
        self._core = core
        self._kept: OrderedDict[Hashable, tuple[Any, Shapes | None]] = OrderedDict()
        count = len(session.inputs), len(session.outputs)
        if count != (len(spec.inputs), len(spec.outputs)):
            raise LaunchError(
                TaskStatus.KERNEL_FAILED,
                f"model {session.path} has {count[0]} inputs and {count[1]} outputs, its spec {len(spec.inputs)} and"
                f" {len(spec.outputs)}; make the spec from the model",
            )

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:  # noqa: ARG002
        """Run the model; see `polymux.device.protocol.Prepared`."""
        places = _places(operands)
        kept = self._kept.get(places)
        if kept is not None:
            try:
                self._call(kept[0])
            except Exception:  # what is wrong is told by the way without it
                del self._kept[places]
            else:
                return kept[1]
        session = self._session
        inputs, outputs = operands[: len(session.inputs)], operands[len(session.inputs) :]
        for tensor, operand in zip(session.inputs, inputs, strict=True):
            _check(tensor, operand)
        extents = _named_extents(session.inputs, inputs)
        shapes: list[tuple[int, ...] | None] = []
        for tensor, operand in zip(session.outputs, outputs, strict=True):
            _check_dtype(tensor, operand)
            shapes.append(_expected(tensor, extents, operand))
        actual, binding = self._run(inputs, outputs, shapes, failed=kept is not None)
        checked = check_shapes(self._spec, actual, operands)
        if binding is not None:
            self._keep(places, binding, checked)
        return checked

    def _keep(self, places: Hashable, binding: Any, shapes: Shapes | None) -> None:
        if len(self._kept) >= KEPT:
            self._kept.popitem(last=False)
        self._kept[places] = (binding, shapes)

    def _call(self, binding: Any) -> None:
        if self._core is None:
            self._session.session.run_with_iobinding(binding)
            return
        with bound_to(self._core):
            self._session.session.run_with_iobinding(binding)

    def _run(
        self,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        shapes: list[tuple[int, ...] | None],
        *,
        failed: bool,
    ) -> tuple[Shapes, Any | None]:
        """Return the outputs' shapes, and the binding where it can be used again.

        With `failed`, it has just failed with outputs bound as they would be here.
        """
        session = self._session
        binds = session.binds_outputs and any(shape is not None for shape in shapes)
        if binds and not failed:
            try:
                return self._attempt(inputs, outputs, shapes)
            except LaunchError:
                raise
            except Exception:
                pass  # the model fails, or its outputs are not as it declares: the free attempt tells
        try:
            actual, _ = self._attempt(inputs, outputs, [None] * len(outputs))
        except LaunchError:
            raise
        except Exception as error:
            message = f"onnxruntime failed: {error}"
            raise LaunchError(TaskStatus.KERNEL_FAILED, message) from error
        if binds:
            session.binds_outputs = False
        return actual, None

    def _attempt(
        self,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        shapes: Sequence[tuple[int, ...] | None],
    ) -> tuple[Shapes, Any | None]:
        """Run with outputs of known shape bound to their buffers, the others copied afterwards."""
        session = self._session
        binding = session.session.io_binding()
        for tensor, operand in zip(session.inputs, inputs, strict=True):
            array = operand_array(operand)
            binding.bind_input(tensor.name, "cpu", 0, ONNX_TYPES[tensor.dtype], array.shape, _address(array))
        for name, value in session.unused.items():
            binding.bind_ortvalue_input(name, value)
        in_place = [shape is not None and 0 not in shape for shape in shapes]
        for tensor, shape, operand in zip(session.outputs, shapes, outputs, strict=True):
            if shape is None or 0 in shape:
                binding.bind_output(tensor.name, "cpu")
            else:
                address = _address(operand_array(operand))
                binding.bind_output(tensor.name, "cpu", 0, ONNX_TYPES[tensor.dtype], shape, address)
        self._call(binding)
        actual: Shapes = []
        for tensor, bound, operand, value in zip(
            session.outputs, in_place, outputs, binding.get_outputs(), strict=True
        ):
            actual.append(tuple(value.shape()))
            if not bound:
                _copy(tensor, value, operand)
        return actual, binding if all(in_place) else None


def _places(operands: Sequence[Operand]) -> Hashable:
    """Say where operands lie, and what lies there."""
    return tuple(
        (
            operand.view.dtype,
            operand.view.shape,
            _address(operand.memory if operand.array is None else operand.array),
        )
        for operand in operands
    )


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _copy(tensor: Tensor, value: Any, operand: Operand) -> None:
    shape = tuple(value.shape())
    nbytes = shape_nbytes(shape, tensor.dtype)
    require_room(tensor.name, shape, nbytes, operand.view)
    if nbytes:
        source = (ctypes.c_uint8 * nbytes).from_address(value.data_ptr())
        target = operand_array(operand).reshape(-1).view(np.uint8)
        np.copyto(target[:nbytes], np.ctypeslib.as_array(source))


def _check(tensor: Tensor, operand: Operand) -> None:
    _check_dtype(tensor, operand)
    shape = operand.view.shape
    if len(shape) != len(tensor.shape) or any(
        isinstance(declared, int) and extent != declared
        for extent, declared in zip(shape, tensor.shape, strict=True)
    ):
        raise LaunchError(
            TaskStatus.BAD_ARGUMENT,
            f"input {tensor.name!r} has shape {shape}; the model takes {_shape_text(tensor.shape)}",
        )


def _check_dtype(tensor: Tensor, operand: Operand) -> None:
    if operand.view.dtype is not tensor.dtype:
        raise LaunchError(
            TaskStatus.BAD_ARGUMENT,
            f"buffer {tensor.name!r} has elements of type {operand.view.dtype.name_short}; the model's are"
            f" {tensor.dtype.name_short}",
        )


def _named_extents(tensors: Sequence[Tensor], operands: Sequence[Operand]) -> dict[str, int | None]:
    """Return the extents that dimensions with a name have; None for names that stand for different ones."""
    extents: dict[str, int | None] = {}
    for tensor, operand in zip(tensors, operands, strict=True):
        for name, extent in zip(tensor.shape, operand.view.shape, strict=True):
            if isinstance(name, str) and extents.setdefault(name, extent) != extent:
                extents[name] = None
    return extents


def _expected(tensor: Tensor, extents: dict[str, int | None], operand: Operand) -> tuple[int, ...] | None:
    """Shape that an output should have and that fits its buffer; None when it has to be seen."""
    shape: list[int] = []
    for declared in tensor.shape:
        extent = extents.get(declared) if isinstance(declared, str) else declared
        if extent is None:
            return None
        shape.append(extent)
    # Models declare wrong shapes: only the real one tells whether the buffer is too small.
    return tuple(shape) if shape_nbytes(shape, tensor.dtype) <= operand.view.nbytes else None


def _shape_text(shape: Sequence[int | str | None]) -> str:
    names = ", ".join("any" if extent is None else str(extent) for extent in shape)
    return f"({names},)" if len(shape) == 1 else f"({names})"
