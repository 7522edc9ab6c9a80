"""Lanes without a server: the built-in kernels called directly, which is what `polymux bench apps` compares with."""

from __future__ import annotations

import mmap
import struct
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from polymux.apps.lane import Array
from polymux.core.errors import InvalidRequest, PolymuxError
from polymux.core.implementation import Implementation, NativeFunction, PythonFunction
from polymux.core.kernel_spec import KernelSpec
from polymux.core.scalar_layout import FORMAT
from polymux.core.task_view import Access
from polymux.device import native_library
from polymux.device.cores import allowed_cores
from polymux.device.thread_team import ThreadTeam
from polymux.kernel.builtin import definitions
from polymux.segment import call_native

_READ, _WRITE = int(Access.READ), int(Access.WRITE)


class NativeLane(ABC):
    """A lane that calls a device directly; a context manager, which gives the memory back at its end."""

    api: str

    @abstractmethod
    def array(self, array: Array, /) -> Any:
        """See `polymux.apps.lane.Lane`."""

    @abstractmethod
    def input(self, array: Array, /) -> Any:
        """See `polymux.apps.lane.Lane`."""

    @abstractmethod
    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, /) -> Any:
        """See `polymux.apps.lane.Lane`."""

    @abstractmethod
    def submit(
        self, kernel: str, inputs: Sequence[Any] = (), outputs: Sequence[Any] = (), **scalars: Any
    ) -> None:
        """See `polymux.apps.lane.Lane`; the arguments are not checked as the server does."""

    @abstractmethod
    def read(self, buffer: Any, /) -> Array:
        """See `polymux.apps.lane.Lane`."""

    @abstractmethod
    def wait(self) -> None:
        """See `polymux.apps.lane.Lane`."""

    @abstractmethod
    def trim(self) -> None:
        """Give memory back that is kept for later buffers."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; calling it again is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def native_lanes(api: str, count: int = 1) -> list[NativeLane]:
    """Open lanes on all cores ("cpu") or on the first OpenCL device ("opencl").

    Raises
    ------
    DeviceUnavailable
        If there is no OpenCL device.
    InvalidRequest
        For another API.
    """
    if api == "cpu":
        return [NativeCpuLane() for _ in range(count)]
    if api == "opencl":
        from polymux.apps.native_opencl import NativeOpenCLLane  # only now: pyopencl need not be installed

        first = NativeOpenCLLane()
        return [first, *(NativeOpenCLLane(first) for _ in range(count - 1))]
    raise InvalidRequest(f"no application runs directly on {api!r}; give 'cpu' or 'opencl'")


@cache
def find_kernel(name: str, api: str) -> tuple[KernelSpec, Implementation]:
    """Find a built-in kernel's implementation for a device API.

    Raises
    ------
    PolymuxError
        If there is none.
    """
    for definition in definitions():
        if definition.spec.name == name:
            for implementation in definition.implementations:
                if implementation.api == api:
                    return definition.spec, implementation
    raise PolymuxError(f"there is no built-in kernel {name!r} for {api}")


class NativeCpuLane(NativeLane):
    """The kernels' C functions (or Python ones) called on NumPy arrays, each when it is submitted.

    Parameters
    ----------
    threads : int, optional
        Of each kernel; as many as the process has cores by default, like the server's device ``cpu``.

    Notes
    -----
    Memory of a buffer that is gone is used again, as the server's segment does, so that neither side pays for fresh
    pages in every run. `input` takes the array itself.
    """

    api = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        cores = allowed_cores()
        self.threads = threads or len(cores)
        self._team = ThreadTeam(cores[: self.threads], name="native lane")
        self._pages = _Pages()

    def array(self, array: Array, /) -> Array:
        """Copy an array; see `polymux.apps.lane.Lane`."""
        buffer = self._pages.empty(array.shape, array.dtype)
        buffer[...] = array
        return buffer

    def input(self, array: Array, /) -> Array:
        """Take the array itself, unless it has gaps."""
        return np.ascontiguousarray(array)

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, /) -> Array:
        """Make an array; see `polymux.apps.lane.Lane`."""
        return self._pages.empty((shape,) if isinstance(shape, int) else shape, np.dtype(dtype))

    def submit(
        self, kernel: str, inputs: Sequence[Array] = (), outputs: Sequence[Array] = (), **scalars: Any
    ) -> None:
        """Call the kernel."""
        native = _native_call(kernel)
        if native is not None:
            accesses = [_READ] * len(inputs) + [_WRITE] * len(outputs)
            threads = self.threads if native.threads else 1
            code, message = call_native(
                native.address, [*inputs, *outputs], accesses, native.pack(scalars), threads
            )
            if code:
                raise PolymuxError(f"kernel {kernel!r} failed: {message}")
            return
        spec, implementation = find_kernel(kernel, "cpu")
        assert isinstance(implementation, PythonFunction), "what else runs on a cpu"
        team = {"team": self._team} if implementation.parallel else {}
        implementation.function(*inputs, *outputs, **spec.unpack(spec.pack(scalars)), **team)

    def read(self, buffer: Array, /) -> Array:
        """Return the array itself."""
        return buffer

    def wait(self) -> None:
        """Nothing is under way."""

    def trim(self) -> None:
        """Give the memory back that no array uses."""
        self._pages.clear()

    def close(self) -> None:
        """End the threads and give the memory back that no array uses."""
        self._team.close()
        self._pages.clear()


class _NativeCall:
    """A C function found once, so that a call costs what it has to."""

    def __init__(self, spec: KernelSpec, implementation: NativeFunction) -> None:
        self.address = native_library.resolve(implementation)
        self.threads = implementation.threads
        form, end = "=", 0
        for _, dtype, offset in spec.layout:
            form += f"{offset - end}x{FORMAT[dtype][1:]}"
            end = offset + dtype.itemsize
        self._struct = struct.Struct(f"{form}{spec.args_nbytes - end}x")
        self._defaults = [(param.name, param.default) for param in spec.scalars]

    def pack(self, scalars: dict[str, Any]) -> bytes:
        return self._struct.pack(*[scalars.get(name, default) for name, default in self._defaults])


@cache
def _native_call(kernel: str) -> _NativeCall | None:
    spec, implementation = find_kernel(kernel, "cpu")
    return _NativeCall(spec, implementation) if isinstance(implementation, NativeFunction) else None


class _Pages:
    """Memory that is used again as soon as the last array on it is gone."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[mmap.mmap]] = defaultdict(list)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        kept = self._free[nbytes]
        memory = kept.pop() if kept else _mapped(nbytes)
        owner = _Owner(memory, dtype, shape)
        weakref.finalize(owner, kept.append, memory).atexit = False
        return np.asarray(owner)

    def clear(self) -> None:
        self._free.clear()


def _mapped(nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= 2 << 20:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class _Owner:
    """What all arrays on a piece of memory keep alive."""

    def __init__(self, memory: mmap.mmap, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        self.memory = memory
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (address, False),
        }
