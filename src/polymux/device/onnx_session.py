"""Loaded ONNX models on the cores of a share, through onnxruntime.

A session computes with one thread per core of its share, each bound to its core; shares of one core have a session in
common, which computes in the calling thread. Threads spin for their next piece of work while a model runs, and sleep
between runs; where several streams have the same cores they sleep at once, since those of a model that waits would take
the cores from one that computes. Where a device has shares that need different sessions, these have their weights in
common (`polymux.device.onnx_weights`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from polymux.core.dtype import DType
from polymux.core.errors import DeviceUnavailable
from polymux.core.implementation import OnnxModel, ProviderModel
from polymux.core.status import TaskStatus
from polymux.device import onnx_providers
from polymux.device.onnx_model import ONNX_TYPES, Tensor, import_onnxruntime, load, tensors
from polymux.device.onnx_providers import Provider
from polymux.device.onnx_weights import MappedModel, give_back_memory
from polymux.device.protocol import LaunchError
from polymux.device.shared_cache import SharedCache, file_identity


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
    provider : Provider, optional
        What computes what it can; None: the processor's own kernels.
    """

    def __init__(
        self,
        model: OnnxModel,
        cores: Sequence[int],
        *,
        spins: bool,
        mapped: MappedModel | None = None,
        provider: Provider | None = None,
    ) -> None:
        self.runtime = _import()
        self.path = model.path
        self.mapped = mapped
        self._provider = provider
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
        providers = onnx_providers.for_session(self._provider)
        session = load(self.runtime, self.path, options(), providers)
        if self._provider is not None:
            problem = onnx_providers.unused(self._provider, session.get_providers())
            if problem:
                raise LaunchError(TaskStatus.KERNEL_FAILED, f"model {self.path}: {problem}")
        return session, frozenset()


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

    def get_through(
        self, model: ProviderModel, cores: Sequence[int], number: int | None = None
    ) -> OnnxSession:
        """Return the session of a model that an execution provider computes, on its accelerator of some number.

        Raises
        ------
        LaunchError
            If there is no such provider, or the model cannot be loaded.
        """
        provider = onnx_providers.find_provider(model.provider)
        if provider is None:
            names = ", ".join(known.name for known in onnx_providers.PROVIDERS)
            message = f"there is no execution provider {model.provider!r}; known are {names}"
            raise LaunchError(TaskStatus.NO_DEVICE, message)
        problem = onnx_providers.why_not(provider)
        if problem:
            raise LaunchError(TaskStatus.NO_DEVICE, problem)
        chosen = provider if number is None else onnx_providers.on_device(provider, number)
        key = (file_identity(model.path), provider.name, number, _kind(cores))

        def make() -> OnnxSession:
            spins = self._kinds[_kind(cores)] < 2
            return OnnxSession(OnnxModel(model.path), cores, spins=spins, provider=chosen)

        return self._sessions.get(key, make)

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


def _nothing(runtime: Any, tensor: Tensor) -> Any:
    """Make a value for an input that nobody reads."""
    shape = [extent if isinstance(extent, int) else 0 for extent in tensor.shape]
    make = runtime.OrtValue
    if tensor.dtype is DType.BF16:
        array = np.zeros(shape, np.uint16)
        return make.ortvalue_from_numpy_with_onnx_type(array, ONNX_TYPES[tensor.dtype])
    return make.ortvalue_from_numpy(np.zeros(shape, tensor.dtype.to_numpy()))
