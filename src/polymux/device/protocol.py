"""What the server asks of a device, and what a device asks of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from polymux.core.device_spec import DeviceSpec, Share
from polymux.core.errors import PolymuxError
from polymux.core.implementation import Implementation
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import BufferView

Memory = Any
"""A piece of a device's own memory, opaque to the server: `pyopencl.Buffer`, a NumPy array of bytes."""

Scalars = Mapping[str, float | int | bool]
Shapes = list[tuple[int, ...]]
"""One shape per output, in elements."""


class LaunchError(PolymuxError):
    """Why a device could not do what it was asked; becomes the status of the task that it was for.

    Parameters
    ----------
    code : TaskStatus
    message : str
        What happened, with names and values, and what to do about it; "it" is the kernel, which whoever reports the
        error names together with the device.
    """

    def __init__(self, code: TaskStatus, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class OutOfMemory(LaunchError, MemoryError):
    """OUT_OF_MEMORY: a device has no room for an allocation."""

    def __init__(self, message: str) -> None:
        super().__init__(TaskStatus.OUT_OF_MEMORY, message)
        self.args = (message,)  # those of its constructor, so that it survives pickling


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A buffer as a launch gets it.

    Parameters
    ----------
    view : BufferView
    array : ndarray, optional
        The elements, typed and shaped, where the host can address them (always on devices with memory "host").
    memory : Memory, optional
        The piece of the device's own memory that holds them.
    """

    view: BufferView
    array: NDArray[Any] | None = None
    memory: Memory | None = None


class NativeCaller(Protocol):
    """Calls a C function of type ``polymux_kernel_fn`` without the GIL; the server passes it in."""

    def __call__(
        self,
        address: int,
        arrays: list[NDArray[Any]],
        accesses: list[int],
        args: bytes,
        threads: int,
        dtypes: list[int],
        /,
    ) -> tuple[int, str]:
        """Return what the function returned and the message that it wrote.

        `dtypes` says what the arrays' elements are, also where NumPy has no name for it (bfloat16).
        """
        ...


class Launch(Protocol):
    """A kernel that was started and may still run."""

    def ended(self) -> bool:
        """Tell whether `wait` returns at once."""
        ...

    def wait(self) -> Shapes | None:
        """Wait for its end; what `Stream.launch` returns and raises. Called once."""
        ...


class Prepared(Protocol):
    """A kernel made ready for one stream; the stream's `launch` runs it."""

    def run(self, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:
        """Run to completion; shapes of the outputs when they differ from the views."""
        ...


@runtime_checkable
class BuildsAhead(Protocol):
    """A prepared kernel of which something is left for the first task that is known before."""

    def build(self) -> None:
        """Do that now; from any thread.

        Raises
        ------
        LaunchError
            If it fails, as it will for the tasks.
        """
        ...


class Stream(Protocol):
    """An ordered queue of one device and share; every call but `prepare`, `forget` and `close` comes from one thread.

    All calls return when what they started is complete. Streams that can do otherwise are `LaunchingStream` as well.
    """

    @property
    def share(self) -> Share:
        """The part of the device that it uses."""
        ...

    def bind_thread(self) -> None:
        """Make the calling thread the stream's: affinity, driver context. Called once, first."""
        ...

    def copy_in(self, memory: Memory, host: NDArray[np.uint8], offset: int = 0) -> None:
        """Write the bytes of `host` to `memory`, from byte `offset` on."""
        ...

    def copy_out(self, memory: Memory, host: NDArray[np.uint8], offset: int = 0) -> None:
        """Read as many bytes as `host` has from `memory`, from byte `offset` on."""
        ...

    def copy_peer(self, memory: Memory, peer: Device, source: Memory, nbytes: int) -> None:
        """Copy the first bytes of a peer's memory to the beginning of `memory` of this stream's device.

        Parameters
        ----------
        memory : Memory
        peer : Device
            One that `Device.is_peer` accepts.
        source : Memory
            Allocated there.
        nbytes : int
        """
        ...

    def prepare(self, spec: KernelSpec, implementation: Implementation) -> Prepared:
        """Compile or load; the same `implementation` object again costs a look-up. From any thread.

        Raises
        ------
        LaunchError
            If it cannot be compiled or loaded, or its API is none of the device's.
        """
        ...

    def launch(self, prepared: Prepared, operands: Sequence[Operand], scalars: Scalars) -> Shapes | None:
        """Run a prepared kernel.

        Returns
        -------
        list of tuple of int, or None
            Shapes of all outputs when one differs from its view; their elements lie at the buffers' beginning.

        Raises
        ------
        LaunchError
            Whatever goes wrong, with the status for the task.
        """
        ...

    def forget(self, implementation: Implementation) -> None:
        """Drop what is kept for an implementation, until it is prepared again; from any thread."""
        ...

    def close(self) -> None:
        """Give everything back; calling it again is fine. Not while a launch runs."""
        ...


@runtime_checkable
class LaunchingStream(Protocol):
    """A stream that can start a kernel before the ones that it has started have ended.

    Notes
    -----
    Kernels end in the order in which they were started. A copy does not wait for them: whoever copies a piece of memory
    has waited for the launches that use it. `spec.launch_ahead` of its device says how many may be under way.
    """

    def start(self, prepared: Prepared, operands: Sequence[Operand], scalars: Scalars) -> Launch:
        """Start a prepared kernel; memory and host arrays of the operands are in use until it has ended.

        The same `operands` and `scalars` objects again cost least; neither may change while they are given.

        Raises
        ------
        LaunchError
            What `Stream.launch` raises, if it is known by now; nothing of the kernel is under way then.
        """
        ...

    def trim(self) -> None:
        """Give back the memory that kernels needed besides their operands; no launch is under way."""
        ...


class Device(Protocol):
    """An accelerator. Its methods may be called from any thread."""

    @property
    def spec(self) -> DeviceSpec:
        """Its properties; they never change."""
        ...

    def open_stream(self, share: Share) -> Stream:
        """Open a stream on a part of the device.

        Raises
        ------
        InvalidRequest
            If the share names units that the device lacks or cannot put together.
        """
        ...

    def allocate(self, nbytes: int) -> Memory:
        """Take a zeroed piece of the device's own memory (devices with memory "own" only).

        Raises
        ------
        OutOfMemory
            With the sizes; nothing is taken.
        InvalidRequest
            If the device has no memory of its own.
        """
        ...

    def free(self, memory: Memory) -> None:
        """Give a piece back; no stream may still be using it."""
        ...

    def host_bytes(self, memory: Memory) -> NDArray[np.uint8] | None:
        """The bytes of a piece of its memory, where the host can address them as fast as its own; else None."""
        ...

    def is_peer(self, other: Device) -> bool:
        """Whether the streams of this device copy straight from the other's memory (`Stream.copy_peer`)."""
        ...

    def forget(self, implementation: Implementation) -> None:
        """Drop what the streams keep for an implementation that will not be launched again."""
        ...

    def counters(self) -> dict[str, int]:
        """What this kind of device counts (``{"reconfigurations": 2}``); may be empty."""
        ...

    def close(self) -> None:
        """Close streams that are still open and give everything back; calling it again is fine."""
        ...
