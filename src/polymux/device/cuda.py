"""NVIDIA GPUs through CuPy: memory of their own, a CUDA stream per stream, kernels that are functions over CuPy arrays.

``cuda`` is every GPU, ``cuda:1`` the second that CUDA lists. They are numbered in the order in which they are asked
for. A stream has the whole of its GPU: CUDA shares its multiprocessors among streams by itself.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.device_spec import DeviceSpec, Share
from polymux.core.errors import Closed, DeviceUnavailable, InvalidRequest
from polymux.core.ids import DeviceId
from polymux.core.implementation import CudaFunction, Implementation
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.device.cpu_kernels import describe_exception
from polymux.device.host_arrays import numpy_dtype
from polymux.device.own_memory import CapacityAccount
from polymux.device.preparing_stream import PreparingStream
from polymux.device.protocol import Device, LaunchError, Operand, OutOfMemory, Prepared, Scalars
from polymux.device.request import DeviceRequest
from polymux.device.surroundings import Found, Surroundings

_KEPT_FREE = 16
"""Of this part of its memory a GPU's driver and CuPy keep one for themselves."""


class CudaDevice:
    """One GPU.

    Parameters
    ----------
    spec : DeviceSpec
    cupy : module
    ordinal : int
        CUDA's number of the GPU.
    """

    def __init__(self, spec: DeviceSpec, cupy: Any, ordinal: int) -> None:
        self._spec = spec
        self._cupy = cupy
        self.ordinal = ordinal
        self._account = CapacityAccount(spec.id, spec.memory_nbytes)
        self._live: dict[int, int] = {}
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[CudaStream] = weakref.WeakSet()
        self._closed = False

    @property
    def spec(self) -> DeviceSpec:
        """Its properties."""
        return self._spec

    def open_stream(self, share: Share) -> CudaStream:
        """Open a CUDA stream; see `polymux.device.protocol.Device`."""
        if self._closed:
            raise Closed(f"{self._spec.id} is closed")
        units = self._spec.units
        if share.units is not None and tuple(share.units) != tuple(range(units)):
            raise InvalidRequest(f"{self._spec.id} has no share of units {share.units}; use all {units}")
        with self._cupy.cuda.Device(self.ordinal):
            stream = CudaStream(self._spec, share, self._cupy, self.ordinal)
        self._streams.add(stream)
        return stream

    def allocate(self, nbytes: int) -> Any:
        """Take zeroed memory of the GPU; see `polymux.device.protocol.Device`."""
        if self._closed:
            raise Closed(f"{self._spec.id} is closed")
        self._account.take(nbytes)
        try:
            with self._cupy.cuda.Device(self.ordinal):
                memory = self._cupy.cuda.alloc(max(nbytes, 1))
                memory.memset(0, max(nbytes, 1))
                self._cupy.cuda.runtime.deviceSynchronize()
        except BaseException as error:
            self._account.give(nbytes)
            if isinstance(error, self._cupy.cuda.memory.OutOfMemoryError):
                raise OutOfMemory(f"{self._spec.id} cannot allocate {nbytes} bytes: {error}") from error
            raise
        with self._lock:
            self._live[id(memory)] = nbytes
        return memory

    def free(self, memory: Any) -> None:
        """Give memory back; CuPy's pool gets it when nobody refers to it any more."""
        with self._lock:
            nbytes = self._live.pop(id(memory), None)
        if nbytes is None:
            raise ValueError(f"this is no live allocation of {self._spec.id}")
        self._account.give(nbytes)

    def host_bytes(self, memory: Any) -> None:
        """Give none: its memory lies behind a bus."""

    def is_peer(self, other: Device) -> bool:
        """Tell whether CUDA copies between the two directly."""
        if not isinstance(other, CudaDevice):
            return False
        can = self._cupy.cuda.runtime.deviceCanAccessPeer(self.ordinal, other.ordinal)
        return self.ordinal == other.ordinal or bool(can)

    def forget(self, implementation: Implementation) -> None:
        """Drop what the streams keep for an implementation."""
        for stream in list(self._streams):
            stream.forget(implementation)

    def counters(self) -> dict[str, int]:
        """Count nothing."""
        return {}

    def close(self) -> None:
        """Close the streams; calling it again is fine."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()


class CudaStream(PreparingStream):
    """A stream of a `CudaDevice`; see `polymux.device.protocol.Stream`."""

    def __init__(self, spec: DeviceSpec, share: Share, cupy: Any, ordinal: int) -> None:
        super().__init__(spec)
        self.share = share
        self._cupy = cupy
        self._ordinal = ordinal
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def bind_thread(self) -> None:
        """Make the GPU the thread's."""
        self._cupy.cuda.runtime.setDevice(self._ordinal)

    def copy_in(self, memory: Any, host: NDArray[np.uint8], offset: int = 0) -> None:
        """Copy from the host."""
        if host.nbytes:
            with self._cupy.cuda.Device(self._ordinal):
                (memory + offset).copy_from_host_async(_address(host), host.nbytes, self._stream)
                self._stream.synchronize()

    def copy_out(self, memory: Any, host: NDArray[np.uint8], offset: int = 0) -> None:
        """Copy to the host."""
        if host.nbytes:
            with self._cupy.cuda.Device(self._ordinal):
                (memory + offset).copy_to_host_async(_address(host), host.nbytes, self._stream)
                self._stream.synchronize()

    def copy_peer(self, memory: Any, peer: Device, source: Any, nbytes: int) -> None:
        """Copy from another GPU's memory, or from another piece of this one's."""
        if not isinstance(peer, CudaDevice):
            raise InvalidRequest(f"{peer.spec.id} is no cuda device and so no peer of {self._spec.id}")
        if nbytes:
            with self._cupy.cuda.Device(self._ordinal):
                memory.copy_from_device_async(source, nbytes, self._stream)
                self._stream.synchronize()

    def _prepare(self, spec: KernelSpec, implementation: Implementation) -> Prepared:  # noqa: ARG002
        if isinstance(implementation, CudaFunction):
            return PreparedCuda(implementation, self._cupy, self._ordinal, self._stream)
        raise LaunchError(
            TaskStatus.NO_DEVICE,
            f"it was given an implementation for {implementation.api}; {self._spec.id} runs those for cuda",
        )


class PreparedCuda:
    """A function over CuPy arrays, ready for one stream."""

    def __init__(self, implementation: CudaFunction, cupy: Any, ordinal: int, stream: Any) -> None:
        self._function = implementation.function
        self._cupy = cupy
        self._ordinal = ordinal
        self._stream = stream

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> None:
        """Call the function, and wait for what it enqueued; see `polymux.device.protocol.Prepared`."""
        cupy = self._cupy
        try:
            with cupy.cuda.Device(self._ordinal), self._stream:
                arrays = [
                    cupy.ndarray(operand.view.shape, numpy_dtype(operand.view.dtype), memptr=operand.memory)
                    for operand in operands
                ]
                self._function(*arrays, **scalars)
                self._stream.synchronize()
        except InvalidRequest as error:
            raise LaunchError(TaskStatus.BAD_ARGUMENT, str(error)) from error
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise LaunchError(TaskStatus.OUT_OF_MEMORY, f"the GPU's memory is used up: {error}") from error
        except Exception as error:
            message = f"it raised {describe_exception(error)}"
            raise LaunchError(_status(cupy, error), message) from error


_STICKY = frozenset(
    f"cudaError{name}"
    for name in (
        "IllegalAddress",
        "IllegalInstruction",
        "InvalidAddressSpace",
        "InvalidPc",
        "MisalignedAddress",
        "HardwareStackError",
        "LaunchFailure",
        "LaunchTimeout",
        "Assert",
        "ECCUncorrectable",
        "NvlinkUncorrectable",
        "DevicesUnavailable",
        "ContextIsDestroyed",
        "SystemNotReady",
        "Unknown",
    )
)
"""After these every further call in the process fails, too (CUDA Runtime API, error handling)."""


def _status(cupy: Any, error: Exception) -> TaskStatus:
    """Tell a kernel that failed from a device that can do nothing any more."""
    failed = isinstance(error, cupy.cuda.runtime.CUDARuntimeError)
    is_sticky = failed and str(error).partition(":")[0].strip() in _STICKY
    return TaskStatus.DEVICE_FAILED if is_sticky else TaskStatus.KERNEL_FAILED


def open_devices(request: DeviceRequest, surroundings: Surroundings) -> Found:
    """Open the devices of a string ``cuda`` (all GPUs) or ``cuda:INDEX``.

    Raises
    ------
    DeviceUnavailable
        If CuPy is not installed, or CUDA finds no GPU.
    ConfigError
        If there is no GPU of that index.
    """
    request.check_options(("streams", "memory_nbytes"))
    if request.file or (request.target and not request.target.isdecimal()):
        raise request.error(request.target or request.file, "cuda takes the index of a GPU: cuda:0")
    cupy = import_cupy()
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # of CuPy's own kind
        raise DeviceUnavailable(f"CUDA finds no GPU ({error})") from error
    if not count:
        raise DeviceUnavailable("CUDA finds no GPU")
    ordinals = [int(request.target)] if request.target else list(range(count))
    if ordinals[0] >= count:
        raise request.error(f"device {ordinals[0]}", f"CUDA lists {count}; give 0 to {count - 1}")
    return Found(
        [
            CudaDevice(_spec(cupy, ordinal, request, surroundings.next_index + place), cupy, ordinal)
            for place, ordinal in enumerate(ordinals)
        ]
    )


def import_cupy() -> Any:
    """Import CuPy.

    Raises
    ------
    DeviceUnavailable
        If it is not installed, or its libraries are not there.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceUnavailable(
            f"CuPy is not installed ({error}); pip install the one for your CUDA, such as cupy-cuda12x"
        ) from error


def _spec(cupy: Any, ordinal: int, request: DeviceRequest, index: int) -> DeviceSpec:
    properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
    total = int(properties["totalGlobalMem"])
    capability = f"{properties['major']}.{properties['minor']}"
    runtime = int(cupy.cuda.runtime.runtimeGetVersion())
    return DeviceSpec(
        id=DeviceId(f"cuda:{index}"),
        api="cuda",
        name=properties["name"].decode(),
        memory_nbytes=request.memory_nbytes(total - total // _KEPT_FREE),
        memory="own",
        units=int(properties["multiProcessorCount"]),
        streams=request.streams(2, int(properties["multiProcessorCount"])),
        apis=("cuda",),
        partitionable=False,
        details=f"compute capability {capability}, CUDA {runtime // 1000}.{runtime % 1000 // 10}, CuPy"
        f" {cupy.__version__}",
    )


def _address(host: NDArray[np.uint8]) -> int:
    return int(host.ctypes.data)
