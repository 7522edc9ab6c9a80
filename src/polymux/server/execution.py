"""Runs one task that the native fast path does not: resolve, check, bring the data, launch, report.

Notes
-----
One `Execution` belongs to one accelerator thread. What it finds out about a kernel and its usual buffers it keeps per
bound queue, so that the next task with the same ones costs two look-ups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from time import monotonic_ns
from typing import Any

from polymux.core.device_spec import DeviceSpec
from polymux.core.dtype import DType
from polymux.core.errors import Closed, InvalidRequest
from polymux.core.status import TaskStatus
from polymux.core.task_view import MAX_RANK, Access, BufferView
from polymux.device.host_arrays import typed
from polymux.device.protocol import LaunchError, Operand, Prepared, Stream
from polymux.segment import SegmentError, TaskRecord
from polymux.server.arguments import Ref, check_buffers, check_scalars
from polymux.server.kernels import BARRIER, FIRST_ID, TO_HOST, Isolated, Kernel
from polymux.server.measurement import Measurements
from polymux.server.placement import HOST, READ, WRITE, Lease, Want
from polymux.server.placing import BufferChangedError, DoesNotFitError
from polymux.server.residency import Residency
from polymux.server.session import Session, TaskQueue

KEPT = 64
"""Sets of buffers whose operands are kept for one kernel of one queue."""


@dataclass(slots=True, eq=False)
class Ready:
    """A kernel as one queue's tasks find it on one stream."""

    kernel: Kernel
    prepared: Prepared | None = None
    isolated: Isolated | None = None
    failure: tuple[TaskStatus, str] | None = None
    """Why it cannot be prepared."""
    args: bytes | None = None
    scalars: dict[str, float | int | bool] = field(default_factory=dict)
    operands: dict[tuple[Ref, ...], list[Operand]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class BoundQueue:
    """A queue as one accelerator thread finds it, each time that it is bound there."""

    queue: TaskQueue
    version: int
    """Of the session's kernels, as `ready` knows them."""
    ready: dict[int, Ready] = field(default_factory=dict)


class Execution:
    """What one accelerator thread does with a task.

    Parameters
    ----------
    device : DeviceSpec
    stream : Stream
        The thread's own.
    location : int
        Where the device's kernels find their data: `HOST` or its own memory.
    residency : Residency
    measurements : Measurements
    """

    def __init__(
        self,
        device: DeviceSpec,
        stream: Stream,
        location: int,
        residency: Residency,
        measurements: Measurements,
    ) -> None:
        self._device = device
        self._stream = stream
        self._location = location
        self._residency = residency
        self._measurements = measurements

    def ready(self, bound: BoundQueue, kernel_id: int) -> Ready | None:
        """Find a kernel and make it ready; None when the device has no implementation of it.

        Raises
        ------
        LaunchError
            UNKNOWN_KERNEL, or why it cannot be prepared.
        """
        session = bound.queue.session
        if bound.version != session.kernels.version:
            bound.version = session.kernels.version
            bound.ready.clear()
        ready = bound.ready.get(kernel_id)
        if ready is None:
            ready = self._prepare(session, kernel_id)
            if ready is None:
                return None
            bound.ready[kernel_id] = ready
        if ready.failure is not None:
            raise LaunchError(*ready.failure)
        return ready

    def launch(self, bound: BoundQueue, ready: Ready, task: TaskRecord, refs: list[Ref]) -> None:
        """Run a task here, its data brought before.

        Raises
        ------
        LaunchError
            Whatever goes wrong, with the status for the task.
        """
        args = task.args
        if args != ready.args:
            ready.scalars = check_scalars(ready.kernel.spec, args)
            ready.args = args
        key = tuple(refs)
        session = bound.queue.session
        if self._location == HOST:
            operands = ready.operands.get(key)
            if operands is None:
                operands = self._host_operands(bound, ready, refs, key)
            self._run(ready, session, refs, operands)
            return
        check_buffers(ready.kernel.spec, refs)
        lease = self.bring(session, bound.queue, refs, self._location)
        try:
            operands = [_device_operand(ref, lease) for ref in refs]
            self._run(ready, session, refs, operands)
        finally:
            self._residency.release(lease)

    def bring(self, session: Session, queue: TaskQueue, refs: list[Ref], location: int) -> Lease:
        """Bring a task's buffers to a place.

        Raises
        ------
        LaunchError
            OUT_OF_MEMORY or BAD_BUFFER, in words, or what the device says.
        """
        wants = [Want(session.home(ref[0], ref[1], ref[5]), ref[6], ref[2]) for ref in refs]
        stream = self._stream if self._location != HOST else None
        try:
            return self._residency.acquire(location, wants, queue.id, stream)
        except DoesNotFitError as error:
            raise LaunchError(TaskStatus.OUT_OF_MEMORY, str(error)) from error
        except (BufferChangedError, SegmentError) as error:
            raise LaunchError(TaskStatus.BAD_BUFFER, str(error)) from error
        except Closed as error:
            raise LaunchError(TaskStatus.CANCELLED, str(error)) from error

    def report_shapes(
        self, ready: Ready, session: Session, refs: list[Ref], shapes: list[tuple[int, ...]]
    ) -> None:
        """Tell the client what shapes its outputs have.

        Raises
        ------
        LaunchError
            When they cannot be, or exceed their buffers.
        """
        outputs = refs[len(ready.kernel.spec.inputs) :]
        if len(shapes) != len(outputs):
            raise LaunchError(
                TaskStatus.KERNEL_FAILED, f"it returned {len(shapes)} shapes for {len(outputs)} outputs"
            )
        for shape, ref in zip(shapes, outputs, strict=True):
            _check_shape(shape, ref)
        for shape, ref in zip(shapes, outputs, strict=True):
            if shape != ref[4]:
                session.segment.set_shape(ref[0], ref[1], list(shape))

    def _prepare(self, session: Session, kernel_id: int) -> Ready | None:
        kernel = session.kernels.by_id(kernel_id)
        if kernel is None:
            raise LaunchError(
                TaskStatus.UNKNOWN_KERNEL,
                f"there is no kernel with the number {kernel_id} for this session; look it up by name first",
            )
        api = kernel.api_for(self._device.apis)
        if api is None:
            return None
        if api in kernel.isolated:
            return Ready(kernel, isolated=kernel.isolated[api])
        try:
            return Ready(kernel, self._stream.prepare(kernel.spec, kernel.implementations[api]))
        except LaunchError as error:
            return Ready(kernel, failure=(error.code, error.message))

    def _host_operands(
        self, bound: BoundQueue, ready: Ready, refs: list[Ref], key: tuple[Ref, ...]
    ) -> list[Operand]:
        check_buffers(ready.kernel.spec, refs)
        session = bound.queue.session
        if any(ref[7] != HOST for ref in refs):
            self.bring(session, bound.queue, refs, HOST)
        operands = [_host_operand(session, ref) for ref in refs]
        if all(ref[7] == HOST for ref in refs):
            if len(ready.operands) >= KEPT:
                ready.operands.clear()
            ready.operands[key] = operands
        return operands

    def _run(self, ready: Ready, session: Session, refs: list[Ref], operands: list[Operand]) -> None:
        assert ready.prepared is not None
        start_ns = monotonic_ns()
        shapes = self._stream.launch(ready.prepared, operands, ready.scalars)
        self._measurements.launched(self._device.id, ready.kernel.id, monotonic_ns() - start_ns)
        if shapes is not None:
            self.report_shapes(ready, session, refs, shapes)


def is_reserved(kernel_id: int) -> bool:
    """Tell whether a number is one of the runtime's own."""
    return kernel_id < FIRST_ID


def run_reserved(execution: Execution, bound: BoundQueue, kernel_id: int, refs: list[Ref]) -> None:
    """Run a barrier (nothing to do, the queue is in order) or bring buffers home.

    Raises
    ------
    LaunchError
        UNKNOWN_KERNEL for any other number.
    """
    if kernel_id == TO_HOST:
        whole = [
            (*ref[:2], READ | WRITE, *ref[3:]) for ref in refs
        ]  # the client may write what it has at home
        execution.bring(bound.queue.session, bound.queue, whole, HOST)
    elif kernel_id != BARRIER:
        raise LaunchError(TaskStatus.UNKNOWN_KERNEL, f"the number {kernel_id} is reserved and no kernel")


def _view(ref: Ref) -> BufferView:
    slot, _, access, dtype, shape, offset, _, _ = ref
    element = DType(dtype)
    return BufferView(slot, element, shape, prod(shape) * element.itemsize, Access(access), offset)


def _host_operand(session: Session, ref: Ref) -> Operand:
    view = _view(ref)
    return Operand(view, typed(session.segment.view(ref[5], ref[6]), view))


def _device_operand(ref: Ref, lease: Lease) -> Operand:
    return Operand(_view(ref), None, lease.memory(ref[0]))


def _check_shape(shape: Any, ref: Ref) -> None:
    possible = (
        isinstance(shape, tuple)
        and len(shape) <= MAX_RANK
        and all(isinstance(extent, int) and 0 <= extent < 2**62 for extent in shape)
    )
    if not possible:
        raise LaunchError(TaskStatus.KERNEL_FAILED, f"it returned {shape!r:.100} as the shape of an output")
    nbytes = prod(shape) * DType(ref[3]).itemsize
    if nbytes > ref[6]:
        raise LaunchError(
            TaskStatus.OUTPUT_TOO_SMALL,
            f"an output has shape {shape} and needs {nbytes} bytes, its buffer has {ref[6]}; give a larger one",
        )


def status_of(error: Exception) -> tuple[TaskStatus, str]:
    """Give any exception a status and a message, so that its task ends."""
    if isinstance(error, LaunchError):
        return error.code, error.message
    if isinstance(error, InvalidRequest):
        return TaskStatus.BAD_ARGUMENT, str(error)
    if isinstance(error, MemoryError):
        return TaskStatus.OUT_OF_MEMORY, str(error) or "the host's memory is used up"
    return TaskStatus.DEVICE_FAILED, f"{type(error).__name__}: {error}"
