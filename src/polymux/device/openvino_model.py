"""ONNX models on the cores of a share through OpenVINO: a second implementation beside onnxruntime's.

Inputs are read and outputs written where the buffers lie, but for outputs whose shape the model does not say.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.implementation import OpenVinoModel
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import shape_nbytes
from polymux.device.cores import bound_to
from polymux.device.host_arrays import check_shapes, operand_array, require_room
from polymux.device.protocol import LaunchError, Operand, Scalars, Shapes
from polymux.device.shared_cache import SharedCache, file_identity

PACKAGE = "openvino"


def is_installed() -> bool:
    """Whether models can be run."""
    return importlib.util.find_spec(PACKAGE) is not None


class CompiledModel:
    """A model compiled for a number of cores."""

    def __init__(self, model: OpenVinoModel, cores: int) -> None:
        self.ov = _import()
        if not os.path.isfile(model.path):
            message = f"model {model.path} does not exist; give its file"
            raise LaunchError(TaskStatus.KERNEL_FAILED, message)
        settings = {
            "INFERENCE_NUM_THREADS": cores,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # processors that have bfloat16 would take that
            "ENABLE_CPU_PINNING": False,  # the stream's thread is bound, and its threads with it
        }
        try:
            self.compiled = self.ov.Core().compile_model(model.path, "CPU", settings)
        except Exception as error:  # OpenVINO's errors are RuntimeErrors
            text = " ".join(str(error).split())[:500]
            raise LaunchError(
                TaskStatus.KERNEL_FAILED, f"model {model.path} cannot be loaded by OpenVINO: {text}"
            ) from error


class CompiledModels:
    """The compiled models of a device that are in use."""

    def __init__(self) -> None:
        self._models: SharedCache[CompiledModel] = SharedCache()

    def get(self, model: OpenVinoModel, cores: int) -> CompiledModel:
        """Return a model compiled for so many cores, compiling it when there is none.

        Raises
        ------
        LaunchError
            If it cannot be compiled.
        """
        return self._models.get((file_identity(model.path), cores), lambda: CompiledModel(model, cores))


class PreparedOpenVino:
    """A model, ready to run in a thread on `core`.

    Raises
    ------
    LaunchError
        If the model has other inputs or outputs than the spec.
    """

    def __init__(self, spec: KernelSpec, model: CompiledModel, core: int) -> None:
        self._spec = spec
        self._model = model
        self._core = core
        self._request = model.compiled.create_infer_request()
        inputs = {name: at for at, port in enumerate(model.compiled.inputs) for name in port.names}
        outputs = {name: at for at, port in enumerate(model.compiled.outputs) for name in port.names}
        missing = [param.name for param in spec.inputs if param.name not in inputs]
        missing += [param.name for param in spec.outputs if param.name not in outputs]
        if missing or len(model.compiled.inputs) != len(spec.inputs):
            raise LaunchError(
                TaskStatus.KERNEL_FAILED,
                f"the model for OpenVINO has inputs {sorted(inputs)} and outputs {sorted(outputs)}, its spec other"
                " ones; make both from the same model",
            )
        self._inputs = [inputs[param.name] for param in spec.inputs]
        self._outputs = [outputs[param.name] for param in spec.outputs]

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:  # noqa: ARG002
        """Run the model; see `polymux.device.protocol.Prepared`."""
        inputs, outputs = operands[: len(self._inputs)], operands[len(self._inputs) :]
        tensor = self._model.ov.Tensor
        try:
            for at, operand in zip(self._inputs, inputs, strict=True):
                self._request.set_input_tensor(
                    at, tensor(_writable(operand_array(operand)), shared_memory=True)
                )
            copied = []
            for place, (at, operand) in enumerate(zip(self._outputs, outputs, strict=True)):
                shape = self._static_shape(at)
                if shape is not None and shape_nbytes(shape, operand.view.dtype) <= operand.view.nbytes:
                    array = operand_array(operand).reshape(-1)[: math.prod(shape)].reshape(shape)
                    self._request.set_output_tensor(at, tensor(array, shared_memory=True))
                else:
                    copied.append(place)
            with bound_to(self._core):
                self._request.infer()
        except LaunchError:
            raise
        except Exception as error:  # OpenVINO's errors are RuntimeErrors
            text = " ".join(str(error).split())[:500]
            raise LaunchError(TaskStatus.KERNEL_FAILED, f"OpenVINO failed: {text}") from error
        shapes = [tuple(self._request.get_output_tensor(at).shape) for at in self._outputs]
        for place in copied:
            self._copy(place, shapes[place], outputs[place])
        return check_shapes(self._spec, shapes, operands)

    def _static_shape(self, at: int) -> tuple[int, ...] | None:
        shape = self._model.compiled.outputs[at].partial_shape
        return tuple(shape.to_shape()) if shape.is_static else None

    def _copy(self, place: int, shape: tuple[int, ...], operand: Operand) -> None:
        nbytes = shape_nbytes(shape, operand.view.dtype)
        require_room(self._spec.outputs[place].name, shape, nbytes, operand.view)
        data = self._request.get_output_tensor(self._outputs[place]).data
        target = operand_array(operand).reshape(-1).view(np.uint8)
        np.copyto(target[:nbytes], np.ascontiguousarray(data).reshape(-1).view(np.uint8))


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """See an array as one that may be written, which OpenVINO wants of inputs, too; it only reads them."""
    if array.flags.writeable or not array.nbytes:
        return array
    alias = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    return np.ctypeslib.as_array(alias).view(array.dtype).reshape(array.shape)


def _import() -> Any:
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise LaunchError(
            TaskStatus.NO_DEVICE,
            f"the package openvino is missing ({error}); install it with pip install 'polymux[openvino]'",
        ) from error
