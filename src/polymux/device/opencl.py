"""OpenCL devices of any vendor: a context each, a command queue per stream, buffers of their own.

A device that is the host's cores works on the segment itself with ``memory=host``: the driver uses that memory where
it lies (CL_MEM_USE_HOST_PTR), and nothing is copied.

``opencl`` is every device that the drivers list, ``opencl:1`` the second of them. They are numbered in the order in
which they are asked for. Shares are sub-devices, where the driver can make them; a share's units must be neighbours.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polymux.core.device_spec import DeviceSpec, Share
from polymux.core.errors import Closed, InvalidRequest
from polymux.core.implementation import Implementation, OpenCLBinary, OpenCLSource
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.device.opencl_buffer import new_zeroed_buffer
from polymux.device.opencl_error import driver_errors
from polymux.device.opencl_kernels import PreparedBinary, PreparedSource
from polymux.device.opencl_program import Programs
from polymux.device.opencl_queue import OpenCLQueue
from polymux.device.own_memory import CapacityAccount
from polymux.device.preparing_stream import PreparingStream
from polymux.device.protocol import (
    Device,
    Launch,
    LaunchError,
    Operand,
    OutOfMemory,
    Prepared,
    Scalars,
)


class OpenCLDevice:
    """One OpenCL device.

    Parameters
    ----------
    spec : DeviceSpec
    cl : module
        pyopencl.
    handle : pyopencl.Device
    context : pyopencl.Context, optional
        Shared with other devices of its driver, which are its peers then; one of its own if None.

    Raises
    ------
    LaunchError
        If the driver refuses a context.
    """

    def __init__(self, spec: DeviceSpec, cl: Any, handle: Any, context: Any = None) -> None:
        self._spec = spec
        self._cl = cl
        self._handle = handle
        with driver_errors(cl, f"{spec.id} cannot be opened"):
            self._context = context or cl.Context([handle])
            self._zeroing = cl.CommandQueue(self._context, handle)
        self._zeroing_lock = threading.Lock()
        self._account = CapacityAccount(spec.id, spec.memory_nbytes)
        self._programs = Programs(cl, self._context, handle, spec.id)
        self._live: dict[int, int] = {}
        self._streams: weakref.WeakSet[OpenCLStream] = weakref.WeakSet()
        self._closed = False

    @property
    def spec(self) -> DeviceSpec:
        """Its properties."""
        return self._spec

    def open_stream(self, share: Share) -> OpenCLStream:
        """Open a command queue on the device or on a sub-device; see `polymux.device.protocol.Device`."""
        if self._closed:
            raise Closed(f"{self._spec.id} is closed")
        handle = self._part(share)
        with driver_errors(self._cl, f"{self._spec.id} cannot open a queue for units {share.units}"):
            queue, copies = (self._cl.CommandQueue(self._context, handle) for _ in range(2))
        launches = OpenCLQueue(self._cl, queue, self._spec.id)
        stream = OpenCLStream(self._spec, share, launches, copies, self._programs)
        self._streams.add(stream)
        return stream

    def allocate(self, nbytes: int) -> Any:
        """Make a zeroed buffer; see `polymux.device.protocol.Device`.

        Notes
        -----
        Zeroing keeps what an application left in the device's memory from the next one, and takes the memory at
        once from drivers that would take it at the first use only.
        """
        if self._closed:
            raise Closed(f"{self._spec.id} is closed")
        if self._spec.memory == "host":
            raise InvalidRequest(f"{self._spec.id} works on host memory and has none of its own")
        self._account.take(nbytes)
        try:
            with (
                driver_errors(self._cl, f"{self._spec.id} cannot allocate {nbytes} bytes"),
                self._zeroing_lock,
            ):
                buffer = new_zeroed_buffer(self._cl, self._zeroing, nbytes)
        except BaseException as error:
            self._account.give(nbytes)
            if isinstance(error, LaunchError):
                raise OutOfMemory(error.message) from error
            raise
        self._live[id(buffer)] = nbytes
        return buffer

    def free(self, memory: Any) -> None:
        """Release a buffer."""
        nbytes = self._live.pop(id(memory), None)
        if nbytes is None:
            raise ValueError(f"this is no live allocation of {self._spec.id}")
        memory.release()
        self._account.give(nbytes)

    def host_bytes(self, memory: Any) -> None:
        """Give none: what the host may read or write is the driver's to say, for each use."""

    def is_peer(self, other: Device) -> bool:
        """Tell whether the other one's buffers belong to the same context."""
        return isinstance(other, OpenCLDevice) and other._context == self._context

    def forget(self, implementation: Implementation) -> None:
        """Drop what the streams keep for an implementation."""
        for stream in list(self._streams):
            stream.forget(implementation)

    def counters(self) -> dict[str, int]:
        """Count how often a program binary took the place of another one: ``reconfigurations``."""
        return {"reconfigurations": self._programs.reconfigurations}

    def close(self) -> None:
        """Close the streams; calling it again is fine."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()
        self._programs.clear()

    def _part(self, share: Share) -> Any:
        """Return the device's handle for a share: its own, or a sub-device's."""
        total = self._spec.units
        units = range(total) if share.units is None else share.units
        if tuple(units) == tuple(range(total)):
            return self._handle
        if not _are_neighbours(units) or not 0 <= units[0] <= units[-1] < total:
            raise InvalidRequest(
                f"{self._spec.id} has no share of units {share.units}; name neighbouring units of 0 to {total - 1},"
                " ascending"
            )
        with driver_errors(self._cl, f"{self._spec.id} cannot be partitioned for units {share.units}"):
            return self._partition(units[0], len(units), total - units[0] - len(units))

    def _partition(self, before: int, count: int, after: int) -> Any:
        kinds = self._cl.device_partition_property
        offered = self._handle.partition_properties
        if kinds.BY_COUNTS in offered:
            counts = [n for n in (before, count, after) if n]
            parts = self._handle.create_sub_devices([kinds.BY_COUNTS, *counts, 0])
            part = parts[1 if before else 0]
        elif kinds.EQUALLY in offered and before % count == 0 and self._spec.units % count == 0:
            part = self._handle.create_sub_devices([kinds.EQUALLY, count])[before // count]
        else:
            raise InvalidRequest(
                f"{self._spec.id} cannot make a share of {count} units after {before}; use all units"
            )
        if part.max_compute_units != count:
            raise InvalidRequest(
                f"{self._spec.id}: the driver made a sub-device of {part.max_compute_units} units for a share of"
                f" {count}; use all units"
            )
        return part


class OpenCLStream(PreparingStream):
    """Command queues of an `OpenCLDevice`; see `polymux.device.protocol.Stream` and `LaunchingStream`.

    Notes
    -----
    Copies have a queue of their own, so that they need not wait for the kernels that were started before.
    """

    def __init__(
        self, spec: DeviceSpec, share: Share, queue: OpenCLQueue, copies: Any, programs: Programs
    ) -> None:
        super().__init__(spec)
        self.share = share
        self._queue = queue
        self._copies = copies
        self._programs = programs

    def bind_thread(self) -> None:
        """Do nothing: the driver's own threads do the work."""

    def copy_in(self, memory: Any, host: NDArray[np.uint8], offset: int = 0) -> None:
        """Copy from the host."""
        if host.nbytes:
            self._copy(memory, host, f"{self._spec.id} cannot be written", dst_offset=offset)

    def copy_out(self, memory: Any, host: NDArray[np.uint8], offset: int = 0) -> None:
        """Copy to the host."""
        if host.nbytes:
            self._copy(host, memory, f"{self._spec.id} cannot be read", src_offset=offset)

    def copy_peer(self, memory: Any, peer: Device, source: Any, nbytes: int) -> None:
        """Copy from a buffer of another device of the context."""
        self._check_open()
        cl, queue = self._queue.cl, self._queue.queue
        if nbytes:
            with driver_errors(cl, f"{self._spec.id} cannot copy from {peer.spec.id}"):
                cl.enqueue_copy(queue, memory, source, byte_count=nbytes).wait()

    def start(self, prepared: Prepared, operands: Sequence[Operand], scalars: Scalars) -> Launch:
        """Start a kernel."""
        self._check_open()
        assert isinstance(prepared, PreparedSource | PreparedBinary), "it was prepared by this stream"
        return prepared.start(operands, scalars)

    def trim(self) -> None:
        """Give scratch memory back."""
        self._queue.trim()

    def _copy(self, target: Any, source: Any, doing: str, **offset: int) -> None:
        self._check_open()
        cl = self._queue.cl
        with driver_errors(cl, doing):
            cl.enqueue_copy(self._copies, target, source, is_blocking=True, **offset)

    def _prepare(self, spec: KernelSpec, implementation: Implementation) -> Prepared:
        if isinstance(implementation, OpenCLSource):
            return PreparedSource(spec, implementation, self._queue, self._programs)
        if isinstance(implementation, OpenCLBinary):
            return PreparedBinary(spec, implementation, self._queue, self._programs)
        raise LaunchError(
            TaskStatus.NO_DEVICE,
            f"it was given an implementation for {implementation.api}; {self._spec.id} runs those for opencl",
        )


def _are_neighbours(units: Sequence[int]) -> bool:
    return len(units) > 0 and list(units) == list(range(units[0], units[0] + len(units)))
