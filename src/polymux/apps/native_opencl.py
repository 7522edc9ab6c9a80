"""A lane that drives the first OpenCL device through pyopencl alone: launches in order, one wait at the end."""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from polymux.apps.lane import Array
from polymux.apps.native_lane import NativeLane, find_kernel
from polymux.core.dtype import DType
from polymux.core.errors import PolymuxError
from polymux.core.implementation import OpenCLSource
from polymux.core.opencl_plan import (
    BufferArgument,
    LocalArgument,
    OpenCLArgument,
    OpenCLLaunch,
    ScalarArgument,
    ScratchArgument,
)
from polymux.core.task_view import Access, BufferView
from polymux.device import pocl
from polymux.device.opencl_discovery import import_pyopencl, list_devices


class DeviceArray:
    """A buffer of the device with the type and shape of its content."""

    _slots = itertools.count()

    def __init__(self, memory: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.memory = memory
        self.shape = shape
        self.dtype = dtype
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        slot = next(self._slots)
        self.read_view, self.write_view = (
            BufferView(slot, DType.from_numpy(dtype), shape, self.nbytes, access, 0)
            for access in (Access.READ, Access.WRITE)
        )


class NativeOpenCLLane(NativeLane):
    """The kernels' OpenCL versions on one in-order command queue.

    Memory of a buffer that is gone is used again, as the server does, unless other lanes share the device.

    Parameters
    ----------
    beside : NativeOpenCLLane, optional
        A lane on the same device whose buffers this one's tasks may use.

    Raises
    ------
    DeviceUnavailable
        If there is no OpenCL device.
    """

    api = "opencl"

    def __init__(self, beside: NativeOpenCLLane | None = None) -> None:
        self._cl = import_pyopencl()
        self._context: Any = self._open() if beside is None else beside._context
        self._queue = self._cl.CommandQueue(self._context)
        self._alone = beside is None
        if beside is not None:
            beside._alone = False
        self._free: defaultdict[int, list[Any]] = defaultdict(list)
        self._functions: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
        self._scratch: dict[tuple[int, int], Any] = {}

    def array(self, array: Array, /) -> DeviceArray:
        """Write an array into a new buffer; see `polymux.apps.lane.Lane`."""
        buffer = self.empty(array.shape, array.dtype)
        if buffer.nbytes:
            source = np.ascontiguousarray(array)
            self._cl.enqueue_copy(self._queue, buffer.memory, source, is_blocking=True)
        return buffer

    def input(self, array: Array, /) -> DeviceArray:
        """Write an array into a new buffer; see `polymux.apps.lane.Lane`."""
        return self.array(array)

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, /) -> DeviceArray:
        """Make a buffer; see `polymux.apps.lane.Lane`."""
        extents = (shape,) if isinstance(shape, int) else shape
        kind = np.dtype(dtype)
        nbytes = int(np.prod(extents, dtype=np.int64)) * kind.itemsize
        kept = self._free[nbytes] if self._alone else []
        flags = self._cl.mem_flags.READ_WRITE
        memory = kept.pop() if kept else self._cl.Buffer(self._context, flags, size=max(nbytes, 1))
        array = DeviceArray(memory, extents, kind)
        weakref.finalize(array, kept.append, memory).atexit = False
        return array

    def submit(
        self,
        kernel: str,
        inputs: Sequence[DeviceArray] = (),
        outputs: Sequence[DeviceArray] = (),
        **scalars: Any,
    ) -> None:
        """Enqueue the launches of the kernel's plan."""
        spec, implementation = find_kernel(kernel, "opencl")
        assert isinstance(implementation, OpenCLSource), "built-in kernels are no binaries"
        views = [array.read_view for array in inputs] + [array.write_view for array in outputs]
        plan = implementation.plan(spec, views, spec.unpack(spec.pack(scalars)))
        functions = self._functions.get((kernel, plan.options))
        if functions is None:
            functions = self._build(kernel, implementation, plan.options)
        buffers = [*inputs, *outputs]
        for launch in plan.launches:
            self._launch(functions[launch.entry], launch, buffers, plan.scratch_nbytes)

    def read(self, buffer: DeviceArray, /) -> Array:
        """Wait and copy the buffer's content to the host."""
        content = np.empty(buffer.shape, buffer.dtype)
        if buffer.nbytes:
            self._cl.enqueue_copy(self._queue, content, buffer.memory, is_blocking=True)
        return content

    def wait(self) -> None:
        """Wait for the command queue."""
        self._queue.finish()

    def trim(self) -> None:
        """Give scratch memory and that of buffers that are gone back."""
        self._queue.finish()
        self._scratch.clear()
        self._free.clear()

    def close(self) -> None:
        """Wait, and give kernels and memory back."""
        self._functions.clear()
        self.trim()

    def _open(self) -> Any:
        listed, _ = list_devices(self._cl)
        first = listed[0]
        if first.platform.name == pocl.PLATFORM and not pocl.knows_cpu(first.handle):
            pocl.teach_cpu(first.handle)
        return self._cl.Context([first.handle])

    def _build(self, kernel: str, implementation: OpenCLSource, options: tuple[str, ...]) -> dict[str, Any]:
        text = " ".join((implementation.options, *options)).strip()
        program = self._cl.Program(self._context, implementation.source).build(text)
        names = [name for name in program.kernel_names.split(";") if name]
        functions = {name: self._cl.Kernel(program, name) for name in names}
        self._functions[kernel, options] = functions
        return functions

    def _launch(
        self, function: Any, launch: OpenCLLaunch, buffers: Sequence[DeviceArray], scratch: tuple[int, ...]
    ) -> None:
        for index, argument in enumerate(launch.arguments):
            function.set_arg(index, self._argument(argument, buffers, scratch))
        self._cl.enqueue_nd_range_kernel(self._queue, function, launch.global_size, launch.local_size)

    def _argument(
        self, argument: OpenCLArgument, buffers: Sequence[DeviceArray], scratch: tuple[int, ...]
    ) -> Any:
        match argument:
            case BufferArgument(index):
                return buffers[index].memory
            case ScalarArgument(dtype, value):
                return np.uint8(value) if dtype is DType.BOOL else dtype.to_numpy().type(value)
            case LocalArgument(nbytes):
                return self._cl.LocalMemory(nbytes)
            case ScratchArgument(index):
                key = (index, scratch[index])
                if key not in self._scratch:
                    flags = self._cl.mem_flags.READ_WRITE
                    self._scratch[key] = self._cl.Buffer(self._context, flags, size=scratch[index])
                return self._scratch[key]
        raise PolymuxError(f"a plan has the argument {argument}, which this lane does not know")
