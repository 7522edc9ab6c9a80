"""Cores of the host as a device.

``cpu`` is all cores of the process and works on the segment itself (memory "host"). ``cpu:0-1`` is the named cores
with memory of their own, so that several such devices behave like separate accelerators; ``,memory=host`` lets them
work on the segment as well. Devices are numbered in the order in which they are asked for: ``cpu:0``, ``cpu:1``.
"""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polymux.core.device_spec import DeviceSpec, Share
from polymux.core.errors import Closed, InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.implementation import (
    Implementation,
    NativeFunction,
    OnnxModel,
    OpenVinoModel,
    ProviderModel,
    PythonFunction,
)
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.device import onnx_providers, openvino_model
from polymux.device.cores import allowed_cores, bind_thread, format_cores, parse_cores
from polymux.device.cpu_kernels import PreparedNative, PreparedPython
from polymux.device.onnx_run import PreparedOnnx
from polymux.device.onnx_session import OnnxSessions
from polymux.device.openvino_model import CompiledModels, PreparedOpenVino
from polymux.device.own_memory import HostPages, host_memory_nbytes
from polymux.device.preparing_stream import PreparingStream
from polymux.device.protocol import Device, LaunchError, NativeCaller, Prepared
from polymux.device.request import DeviceRequest
from polymux.device.surroundings import Found, Surroundings
from polymux.device.thread_team import ThreadTeam

_OPTIONS = ("streams", "shares", "memory", "memory_nbytes", "models")
_ONNXRUNTIME, _OPENVINO = "onnxruntime", "openvino"


class CpuDevice:
    """Some of the host's cores.

    Parameters
    ----------
    spec : DeviceSpec
        ``units`` equals the number of cores.
    cores : sequence of int
        By the kernel's numbers; unit i of a share is the i-th of them.
    native_caller : NativeCaller, optional
        Runs native kernels; without one they are refused.
    """

    def __init__(
        self, spec: DeviceSpec, cores: Sequence[int], native_caller: NativeCaller | None = None
    ) -> None:
        self._spec = spec
        self._native_caller = native_caller
        self.cores = tuple(cores)
        self._pages = HostPages(spec.id, spec.memory_nbytes) if spec.memory == "own" else None
        self._sessions = OnnxSessions()
        self._compiled = CompiledModels()
        self._streams: weakref.WeakSet[CpuStream] = weakref.WeakSet()
        self._closed = False

    @property
    def spec(self) -> DeviceSpec:
        """Its properties."""
        return self._spec

    def open_stream(self, share: Share) -> CpuStream:
        """Open a stream on some of the cores; see `polymux.device.protocol.Device`."""
        if self._closed:
            raise Closed(f"{self._spec.id} is closed")
        units = range(len(self.cores)) if share.units is None else share.units
        if not units or len(set(units)) != len(units) or not all(0 <= u < len(self.cores) for u in units):
            raise InvalidRequest(
                f"{self._spec.id} has no share of units {share.units}; name one or more of 0 to"
                f" {len(self.cores) - 1}, each once"
            )
        cores = tuple(self.cores[unit] for unit in units)
        self._sessions.expect(cores)
        stream = CpuStream(self._spec, share, cores, self._sessions, self._compiled, self._native_caller)
        self._streams.add(stream)
        return stream

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Take pages of the host as the device's own memory; see `polymux.device.protocol.Device`."""
        if self._pages is None:
            raise InvalidRequest(f"{self._spec.id} works on host memory and has none of its own")
        return self._pages.allocate(nbytes)

    def free(self, memory: NDArray[np.uint8]) -> None:
        """Give pages back."""
        if self._pages is None:
            raise InvalidRequest(f"{self._spec.id} works on host memory and has none of its own")
        self._pages.free(memory)

    def host_bytes(self, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Its memory is the host's."""
        return memory

    def is_peer(self, other: Device) -> bool:
        """Tell other cpus with memory of their own to be peers."""
        return isinstance(other, CpuDevice) and other._pages is not None

    def forget(self, implementation: Implementation) -> None:
        """Drop what the streams keep for an implementation."""
        for stream in list(self._streams):
            stream.forget(implementation)

    def counters(self) -> dict[str, int]:
        """Count the sessions of ONNX models, and the models that have their weights in memory more than once."""
        return self._sessions.counters()

    def close(self) -> None:
        """Close the streams; calling it again is fine."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()


class CpuStream(PreparingStream):
    """A queue of a `CpuDevice`, on the cores of its share; see `polymux.device.protocol.Stream`."""

    def __init__(
        self,
        spec: DeviceSpec,
        share: Share,
        cores: tuple[int, ...],
        sessions: OnnxSessions,
        compiled: CompiledModels,
        native_caller: NativeCaller | None,
    ) -> None:
        super().__init__(spec)
        self.share = share
        self.cores = cores
        self.team = ThreadTeam(cores, name=f"{spec.id} cores {format_cores(cores)}")
        self._sessions = sessions
        self._compiled = compiled
        self._native_caller = native_caller

    def bind_thread(self) -> None:
        """Let the calling thread run on the share's cores only."""
        bind_thread(self.cores)

    def copy_in(self, memory: NDArray[np.uint8], host: NDArray[np.uint8], offset: int = 0) -> None:
        """Copy from the host, without the interpreter's lock."""
        np.copyto(memory[offset : offset + host.nbytes], host)

    def copy_out(self, memory: NDArray[np.uint8], host: NDArray[np.uint8], offset: int = 0) -> None:
        """Copy to the host, without the interpreter's lock."""
        np.copyto(host, memory[offset : offset + host.nbytes])

    def copy_peer(
        self, memory: NDArray[np.uint8], peer: Device, source: NDArray[np.uint8], nbytes: int
    ) -> None:
        """Copy from another cpu's memory, without the interpreter's lock."""
        if not isinstance(peer, CpuDevice):
            raise InvalidRequest(f"{peer.spec.id} is no cpu and so no peer of {self._spec.id}")
        np.copyto(memory[:nbytes], source[:nbytes])

    def close(self) -> None:
        """End the team's threads and drop what was prepared."""
        super().close()
        self.team.close()

    def _prepare(self, spec: KernelSpec, implementation: Implementation) -> Prepared:
        if isinstance(implementation, PythonFunction):
            return PreparedPython(spec, implementation, self.team)
        if isinstance(implementation, NativeFunction):
            return PreparedNative(spec, implementation, self._native_caller, len(self.cores))
        if isinstance(implementation, OnnxModel):
            return PreparedOnnx(spec, self._sessions.get(implementation, self.cores), self.cores[0])
        if isinstance(implementation, ProviderModel):
            session = self._sessions.get_through(implementation, self.cores)
            return PreparedOnnx(spec, session, self.cores[0])
        if isinstance(implementation, OpenVinoModel):
            compiled = self._compiled.get(implementation, len(self.cores))
            return PreparedOpenVino(spec, compiled, self.cores[0])
        raise LaunchError(
            TaskStatus.NO_DEVICE,
            f"it was given an implementation for {implementation.api}; {self._spec.id} runs those for"
            f" {', '.join(self._spec.apis)}",
        )


def open_devices(request: DeviceRequest, surroundings: Surroundings) -> Found:
    """Open the device of a string ``cpu`` or ``cpu:CORES``.

    Raises
    ------
    ConfigError
        For cores that do not exist or are not allowed to this process, and bad options.
    """
    request.check_options(_OPTIONS)
    if request.file:
        raise request.error(request.file, "cpu takes cores, not a file: cpu:0-1")
    allowed = allowed_cores()
    cores = _cores(request, allowed) if request.target else allowed
    memory = _memory(request)
    host_nbytes = host_memory_nbytes()
    streams = request.streams(min(2, len(cores)), len(cores))
    spec = DeviceSpec(
        id=DeviceId(f"cpu:{surroundings.next_index}"),
        api="cpu",
        name=cpu_name(),
        memory_nbytes=request.memory_nbytes(host_nbytes if memory == "host" else host_nbytes // 4),
        memory=memory,
        units=len(cores),
        streams=streams,
        apis=cpu_apis(_preferred(request)),
        partitionable=len(cores) > 1,
        details=_details(cores),
        shares=request.shares(len(cores), streams),
        cores=cores,
    )
    return Found([CpuDevice(spec, cores, surroundings.native_caller)])


def cpu_apis(preferred: str = OnnxModel.api) -> tuple[str, ...]:
    """Kinds of implementation that the host's cores can run, best first: models only where a library is installed."""
    there = {OnnxModel.api: _ONNXRUNTIME, OpenVinoModel.api: openvino_model.PACKAGE}
    found = [api for api, package in there.items() if importlib.util.find_spec(package)]
    found += [ProviderModel.api_of(its.name) for its in onnx_providers.offered() if its.on_processor]
    return ("cpu", *sorted(found, key=lambda api: api != preferred))


def cpu_name() -> str:
    """The processor's name as its vendor writes it."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names and names[0] else "CPU"


def _cores(request: DeviceRequest, allowed: Sequence[int]) -> tuple[int, ...]:
    try:
        cores = parse_cores(request.target)
    except ValueError as problem:
        raise request.error(request.target, str(problem)) from None
    for core in cores:
        if core not in allowed:
            remedy = f"this process may use core {format_cores(allowed)} only; name some of them"
            raise request.error(f"core {core}", remedy)
    return cores


def _memory(request: DeviceRequest) -> Literal["host", "own"]:
    text = request.options.get("memory", "own" if request.target else "host")
    if text not in ("host", "own"):
        raise request.error(f"memory={text}", "give memory=host (the segment itself) or memory=own")
    return "host" if text == "host" else "own"


def _details(cores: Sequence[int]) -> str:
    details = f"core {format_cores(cores)}" if len(cores) == 1 else f"cores {format_cores(cores)}"
    if "onnx" not in cpu_apis():
        details += "; no ONNX models, since onnxruntime is not installed (pip install 'polymux[onnx]')"
    return details


def _preferred(request: DeviceRequest) -> str:
    """Option ``models``: which implementation of a model is taken where there are several."""
    text = request.options.get("models", _ONNXRUNTIME)
    if text == _ONNXRUNTIME:
        return OnnxModel.api
    library, colon, name = text.partition(":")
    if library == _ONNXRUNTIME and colon:
        return _provider_api(request, name)
    if text != _OPENVINO:
        remedy = f"give models={_ONNXRUNTIME}, models={_ONNXRUNTIME}:PROVIDER or models={_OPENVINO}"
        raise request.error(f"models={text}", remedy)
    if not openvino_model.is_installed():
        raise request.error(f"models={text}", "needs the package openvino: pip install 'polymux[openvino]'")
    return OpenVinoModel.api


def _provider_api(request: DeviceRequest, name: str) -> str:
    """Find the execution provider that is named behind ``models=onnxruntime:``."""
    provider = onnx_providers.find_provider(name)
    if provider is None or not provider.on_processor:
        known = ", ".join(its.name for its in onnx_providers.PROVIDERS if its.on_processor)
        raise request.error(name, f"no execution provider for the processor is called so; known are {known}")
    problem = onnx_providers.why_not(provider)
    if problem:
        raise request.error(name, problem)
    return ProviderModel.api_of(name)
