"""ONNX models on the cores of a share, through onnxruntime.

A session computes with one thread per core of its share, each bound to its core; shares of one core have a session in
common, which computes in the calling thread. Threads spin for their next piece of work while a model runs, and sleep
between runs; where several streams have the same cores they sleep at once, since those of a model that waits would take
the cores from one that computes. Where a device has shares that need different sessions, these have their weights in
common (`polymux.device.onnx_weights`). Inputs are read and outputs written where the buffers lie.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.dtype import DType
from polymux.core.errors import DeviceUnavailable
from polymux.core.implementation import OnnxModel
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import shape_nbytes
from polymux.device.cores import bound_to
from polymux.device.host_arrays import check_shapes, operand_array, require_room
from polymux.device.onnx_model import Tensor, import_onnxruntime, load, tensors
from polymux.device.onnx_weights import MappedModel, give_back_memory
from polymux.device.protocol import LaunchError, Operand, Scalars, Shapes
from polymux.device.shared_cache import SharedCache, file_identity

_BFLOAT16 = 16
"""``TensorProto.BFLOAT16`` of the ONNX standard, which NumPy has no name for."""


class OnnxSession:
    """A loaded model on some cores; several threads may run it.

    Parameters
    ----------
    model : OnnxModel
    cores : sequence of int
        The calling thread computes on the first, onnxruntime's threads on the others.
    spins : bool
        Whether threads spin for work while the model runs; otherwise they sleep.
    mapped : MappedModel, optional
        Whose weights it uses, so that they are in memory once for all such sessions; None: it has its own.
    """

    def __init__(
        self, model: OnnxModel, cores: Sequence[int], *, spins: bool, mapped: MappedModel | None = None
    ) -> None:
        self.runtime = _import()
        self.path = model.path
        self.mapped = mapped
        self.session, unused = self._load(lambda: _options(self.runtime, model, cores, spins=spins))
        give_back_memory()
        inputs, self.outputs = tensors(model.path, self.session)
        self.inputs = [tensor for tensor in inputs if tensor.name not in unused]
        self.unused = {
            tensor.name: _nothing(self.runtime, tensor) for tensor in inputs if tensor.name in unused
        }
        self.binds_outputs = True
        """Until the model gives an output another shape than it declares."""

    def _load(self, options: Callable[[], Any]) -> tuple[Any, frozenset[str]]:
        if self.mapped is not None:
            loaded = self.mapped.load(self.runtime, options())
            if loaded is not None:
                return loaded
        return load(self.runtime, self.path, options()), frozenset()


class OnnxSessions:
    """The sessions of a device that are in use, so that its streams have them and their weights in common."""

    def __init__(self) -> None:
        self._sessions: SharedCache[OnnxSession] = SharedCache()
        self._mapped: SharedCache[MappedModel] = SharedCache()
        self._kinds: Counter[Hashable] = Counter()

    def expect(self, cores: Sequence[int]) -> None:
        """Take note of a stream on some cores, before anybody wants a session."""
        self._kinds[_kind(cores)] += 1

    def get(self, model: OnnxModel, cores: Sequence[int]) -> OnnxSession:
        """Return the session of a model for these cores, loading it when there is none.

        Raises
        ------
        LaunchError
            If it cannot be loaded.
        """
        content = (file_identity(model.path), model.options, model.optimized)
        return self._sessions.get((content, _kind(cores)), lambda: self._make(content, model, cores))

    def counters(self) -> dict[str, int]:
        """Count the sessions, and the models whose sessions have weights of their own though that is not wanted."""
        unshared = sum(bool(mapped.problem) for mapped in self._mapped.things())
        return {"onnx_sessions": len(self._sessions.things()), "onnx_models_not_shared": unshared}

    def _make(self, content: Hashable, model: OnnxModel, cores: Sequence[int]) -> OnnxSession:
        spins = self._kinds[_kind(cores)] < 2
        if len(self._kinds) < 2 or model.optimized:  # such files are mapped as they are
            return OnnxSession(model, cores, spins=spins)
        mapped = self._mapped.get(content, lambda: MappedModel(_import(), model))
        return OnnxSession(model, cores, spins=spins, mapped=mapped)


class PreparedOnnx:
    """A model, ready to run in a thread on `core`."""

    def __init__(self, spec: KernelSpec, session: OnnxSession, core: int) -> None:
        self._spec = spec
        self._session = session
        self._core = core
        count = len(session.inputs), len(session.outputs)
        if count != (len(spec.inputs), len(spec.outputs)):
            raise LaunchError(
                TaskStatus.KERNEL_FAILED,
                f"model {session.path} has {count[0]} inputs and {count[1]} outputs, its spec {len(spec.inputs)} and"
                f" {len(spec.outputs)}; make the spec from the model",
            )

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:  # noqa: ARG002
        """Run the model; see `polymux.device.protocol.Prepared`."""
        session = self._session
        inputs, outputs = operands[: len(session.inputs)], operands[len(session.inputs) :]
        for tensor, operand in zip(session.inputs, inputs, strict=True):
            self._check(tensor, operand)
        extents = _named_extents(session.inputs, inputs)
        shapes: list[tuple[int, ...] | None] = []
        for tensor, operand in zip(session.outputs, outputs, strict=True):
            self._check_dtype(tensor, operand)
            shapes.append(_expected(tensor, extents, operand))
        with bound_to(self._core):
            actual = self._run(inputs, outputs, shapes)
        return check_shapes(self._spec, actual, operands)

    def _run(
        self, inputs: Sequence[Operand], outputs: Sequence[Operand], shapes: list[tuple[int, ...] | None]
    ) -> Shapes:
        session = self._session
        binds = session.binds_outputs and any(shape is not None for shape in shapes)
        if binds:
            try:
                return self._attempt(inputs, outputs, shapes)
            except LaunchError:
                raise
            except Exception:
                pass  # the model fails, or its outputs are not as it declares: the free attempt tells
        try:
            actual = self._attempt(inputs, outputs, [None] * len(outputs))
        except LaunchError:
            raise
        except Exception as error:
            message = f"onnxruntime failed: {error}"
            raise LaunchError(TaskStatus.KERNEL_FAILED, message) from error
        if binds:
            session.binds_outputs = False
        return actual

    def _attempt(
        self,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        shapes: Sequence[tuple[int, ...] | None],
    ) -> Shapes:
        """Run with outputs of known shape bound to their buffers, the others copied afterwards."""
        session = self._session
        binding = session.session.io_binding()
        for tensor, operand in zip(session.inputs, inputs, strict=True):
            value = _value(session.runtime, tensor, operand_array(operand))
            binding.bind_ortvalue_input(tensor.name, value)
        for name, value in session.unused.items():
            binding.bind_ortvalue_input(name, value)
        for tensor, shape, operand in zip(session.outputs, shapes, outputs, strict=True):
            if shape is None or 0 in shape:
                binding.bind_output(tensor.name, "cpu")
            else:
                value = _value(session.runtime, tensor, _beginning(operand, shape))
                binding.bind_ortvalue_output(tensor.name, value)
        session.session.run_with_iobinding(binding)
        actual: Shapes = []
        for tensor, shape, operand, value in zip(
            session.outputs, shapes, outputs, binding.get_outputs(), strict=True
        ):
            actual.append(tuple(value.shape()))
            if shape is None or 0 in shape:
                self._copy(tensor, value, operand)
        return actual

    def _copy(self, tensor: Tensor, value: Any, operand: Operand) -> None:
        shape = tuple(value.shape())
        nbytes = shape_nbytes(shape, tensor.dtype)
        require_room(tensor.name, shape, nbytes, operand.view)
        if nbytes:
            source = (ctypes.c_uint8 * nbytes).from_address(value.data_ptr())
            target = operand_array(operand).reshape(-1).view(np.uint8)
            np.copyto(target[:nbytes], np.ctypeslib.as_array(source))

    def _check(self, tensor: Tensor, operand: Operand) -> None:
        self._check_dtype(tensor, operand)
        shape = operand.view.shape
        if len(shape) != len(tensor.shape) or any(
            isinstance(declared, int) and extent != declared
            for extent, declared in zip(shape, tensor.shape, strict=True)
        ):
            raise LaunchError(
                TaskStatus.BAD_ARGUMENT,
                f"input {tensor.name!r} has shape {shape}; the model takes {_shape_text(tensor.shape)}",
            )

    def _check_dtype(self, tensor: Tensor, operand: Operand) -> None:
        if operand.view.dtype is not tensor.dtype:
            raise LaunchError(
                TaskStatus.BAD_ARGUMENT,
                f"buffer {tensor.name!r} has elements of type {operand.view.dtype.name_short}; the model's are"
                f" {tensor.dtype.name_short}",
            )


def _import() -> Any:
    try:
        return import_onnxruntime()
    except DeviceUnavailable as error:
        raise LaunchError(TaskStatus.NO_DEVICE, error.reason) from error


def _kind(cores: Sequence[int]) -> Hashable:
    """Tell apart the sessions that shares need: any single core will do for one that has no threads."""
    return tuple(cores) if len(cores) > 1 else 1


def _options(runtime: Any, model: OnnxModel, cores: Sequence[int], *, spins: bool) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = len(cores)
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is reported as the task's error
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spins else "0")
    options.add_session_config_entry("session.force_spinning_stop", "1")  # with the end of a run
    if len(cores) > 1:  # processors count from 1 there; the calling thread is none of the session's
        affinities = ";".join(str(core + 1) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
    if model.optimized:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in model.options:
        options.add_session_config_entry(key, value)
    return options


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


def _value(runtime: Any, tensor: Tensor, array: NDArray[Any]) -> Any:
    """Wrap an array as a value of onnxruntime, without copy."""
    if tensor.dtype is DType.BF16:
        return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16)
    return runtime.OrtValue.ortvalue_from_numpy(array)


def _nothing(runtime: Any, tensor: Tensor) -> Any:
    """Make a value for an input that nobody reads."""
    shape = [extent if isinstance(extent, int) else 0 for extent in tensor.shape]
    dtype = np.dtype(np.uint16) if tensor.dtype is DType.BF16 else tensor.dtype.to_numpy()
    return _value(runtime, tensor, np.zeros(shape, dtype))


def _beginning(operand: Operand, shape: tuple[int, ...]) -> NDArray[Any]:
    """See the beginning of an operand's buffer as an array of another shape that fits."""
    array = operand_array(operand)
    return array.reshape(-1)[: math.prod(shape)].reshape(shape)


def _shape_text(shape: Sequence[int | str | None]) -> str:
    names = ", ".join("any" if extent is None else str(extent) for extent in shape)
    return f"({names},)" if len(shape) == 1 else f"({names})"
