"""A worker process: runs the kernels of one application on one stream's share, on the application's own memory.

Started by the server (`worker_process`) with a channel and the segment; nothing else of the server is open here. It
ends with the channel.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from polymux.core.device_spec import Share
from polymux.core.dtype import DType
from polymux.core.errors import InvalidRequest, PolymuxError
from polymux.core.implementation import Implementation
from polymux.core.kernel_spec import KernelSpec
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access, BufferView
from polymux.device.host_arrays import typed
from polymux.device.protocol import Device, LaunchError, Operand, Prepared, Stream
from polymux.device.registry import discover
from polymux.kernel.load import load_kernels
from polymux.segment import call_native
from polymux.server.arguments import Ref
from polymux.server.kernels import OperatorKernel, Registration
from polymux.server.worker_channel import ChannelClosedError, receive_order, send_answer

MAX_MESSAGE_CHARACTERS = 2000
"""Of an error; more does not fit a task's completion."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker computes: a device request, which of its devices, and the share."""

    request: str
    index: int
    units: tuple[int, ...] | None


class WorkerMemory:
    """The application's segment as this process sees it, grants included."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self._segment = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        self._foreign: dict[int, NDArray[np.uint8]] = {}
        os.close(fd)

    def put_foreign(self, offset: int, nbytes: int, fd: int) -> None:
        """Put a grant's pages at an offset."""
        self._foreign[offset] = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        os.close(fd)

    def drop_foreign(self, offset: int) -> None:
        """Let the segment's own pages show at an offset again."""
        self._foreign.pop(offset, None)

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer, without copy."""
        foreign = self._foreign.get(offset)
        return foreign[:nbytes] if foreign is not None else self._segment[offset : offset + nbytes]


class WorkerKernels:
    """The kernels defined so far, ready for the stream."""

    def __init__(self, device: Device, stream: Stream, memory: WorkerMemory) -> None:
        self._device = device
        self._stream = stream
        self._memory = memory
        self._prepared: dict[int, Prepared] = {}
        self._implementations: dict[int, Implementation] = {}

    def define(self, serial: int, source: Registration | OperatorKernel) -> None:
        """Load and prepare a kernel."""
        implementation = _load(source)
        self._prepared[serial] = self._stream.prepare(source.spec, implementation)
        self._implementations[serial] = implementation

    def forget(self, serial: int) -> None:
        """Let go of a kernel."""
        self._prepared.pop(serial, None)
        implementation = self._implementations.pop(serial, None)
        if implementation is not None:
            self._device.forget(implementation)

    def run(
        self, serial: int, refs: list[Ref], scalars: dict[str, float | int | bool]
    ) -> list[tuple[int, ...]] | None:
        """Run a kernel on the application's memory; copies only for a device with memory of its own."""
        prepared = self._prepared[serial]
        views = [_view(ref) for ref in refs]
        hosts = [self._memory.view(ref[5], ref[6]) for ref in refs]
        if self._device.spec.memory == "host":
            operands = [Operand(view, typed(host, view)) for view, host in zip(views, hosts, strict=True)]
            return self._stream.launch(prepared, operands, scalars)
        return self._run_on_device(prepared, views, hosts, scalars)

    def _run_on_device(
        self,
        prepared: Prepared,
        views: list[BufferView],
        hosts: list[NDArray[np.uint8]],
        scalars: dict[str, float | int | bool],
    ) -> list[tuple[int, ...]] | None:
        memories: dict[int, Any] = {}
        accesses: dict[int, int] = {}
        try:
            for view, host in zip(views, hosts, strict=True):
                accesses[view.slot] = accesses.get(view.slot, 0) | view.access
                if view.slot not in memories:
                    memories[view.slot] = self._device.allocate(host.nbytes)
                    self._stream.copy_in(memories[view.slot], host)
            operands = [Operand(view, None, memories[view.slot]) for view in views]
            shapes = self._stream.launch(prepared, operands, scalars)
            for slot, host in {view.slot: host for view, host in zip(views, hosts, strict=True)}.items():
                if accesses[slot] & Access.WRITE:
                    self._stream.copy_out(memories[slot], host)
            return shapes
        finally:
            for memory in memories.values():
                self._device.free(memory)


def serve(channel: socket.socket, memory: WorkerMemory, place: Place) -> None:
    """Carry out orders until the channel closes."""
    devices, absent = discover([place.request], native_caller=call_native)
    if place.index >= len(devices):
        reasons = "; ".join(device.reason for device in absent) or "it is not there"
        raise PolymuxError(f"device {place.request} cannot be opened in a worker process: {reasons}")
    device = devices[place.index]
    stream = device.open_stream(Share(place.units))
    stream.bind_thread()
    kernels = WorkerKernels(device, stream, memory)
    while True:
        order, descriptors = receive_order(channel)
        name, *rest = order
        if name == "foreign":
            for (offset, nbytes), fd in zip(rest[0], descriptors, strict=True):
                memory.put_foreign(offset, nbytes, fd)
        elif name == "own":
            memory.drop_foreign(rest[0])
        elif name == "define":
            send_answer(channel, _outcome(lambda: kernels.define(*rest)))  # noqa: B023
        elif name == "forget":
            send_answer(channel, _outcome(lambda: kernels.forget(*rest)))  # noqa: B023
        elif name == "run":
            send_answer(channel, _outcome(lambda: kernels.run(*rest)))  # noqa: B023


def _outcome(work: Any) -> dict[str, Any]:
    try:
        return {"status": TaskStatus.OK, "shapes": work()}
    except LaunchError as error:
        return {"status": error.code, "message": error.message[:MAX_MESSAGE_CHARACTERS]}
    except BaseException as error:  # an application's code may raise anything, also SystemExit
        return {
            "status": TaskStatus.KERNEL_FAILED,
            "message": f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARACTERS],
        }


def _load(source: Registration | OperatorKernel) -> Implementation:
    if isinstance(source, OperatorKernel):
        # the server has the models' specs; here only the implementation is of use
        table = load_kernels(source.files, model_spec=lambda _path, name, doc: KernelSpec(name, doc=doc))
        return table.implementations(source.spec.name)[source.api]
    sys.path[:] = [*source.sys_path, *(path for path in sys.path if path not in source.sys_path)]
    if source.cwd and Path(source.cwd).is_dir():
        os.chdir(source.cwd)
    if source.model is not None:
        return source.model
    implementation = cloudpickle.loads(source.pickled)
    if not isinstance(implementation, Implementation):
        raise InvalidRequest(f"{type(implementation).__name__} is no implementation of a kernel")
    return implementation


def _view(ref: Ref) -> BufferView:
    slot, _, access, dtype, shape, offset, _, _ = ref
    element = DType(dtype)
    return BufferView(slot, element, shape, prod(shape) * element.itemsize, Access(access), offset)


def _end_with(lifeline: int) -> None:
    """Have this process killed when the other end of a pipe closes, whatever it is computing then."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    poller = select.poll()
    poller.register(lifeline, select.POLLIN)
    if poller.poll(0):
        os._exit(1)  # it has closed already


def _limit_memory(nbytes: int) -> None:
    """Let allocations beyond a size fail here, and have this process be the first that the system ends for memory."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    least = nbytes if most == resource.RLIM_INFINITY else min(nbytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (least, least))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    """Run as ``python -m polymux.server.worker_main``."""
    parser = argparse.ArgumentParser(description="A worker process of a Polymux server; not started by hand.")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    parser.add_argument("--segment", type=int, required=True)
    parser.add_argument("--segment-nbytes", type=int, required=True)
    parser.add_argument("--memory-nbytes", type=int, required=True)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory(options.memory_nbytes)
    _end_with(options.lifeline)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())  # the server blocks some of them
    with socket.socket(fileno=options.channel) as channel:
        memory = WorkerMemory(options.segment, options.segment_nbytes)
        try:
            order, _ = receive_order(channel)
            serve(channel, memory, Place(*order))
        except ChannelClosedError:
            pass
        except PolymuxError as error:
            send_answer(channel, {"status": TaskStatus.DEVICE_FAILED, "message": str(error)})


if __name__ == "__main__":
    main()
