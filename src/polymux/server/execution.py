"""Runs one task that the native fast path does not: resolve, check, bring the data, start, wait, report.

Notes
-----
One `Execution` belongs to one accelerator thread. What it finds out about a kernel and its usual buffers it keeps per
bound queue, so that the next task with the same ones costs two look-ups. Tasks under way that use the same buffers hold
them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from time import monotonic_ns

from polymux.core.device_spec import DeviceSpec
from polymux.core.dtype import DType
from polymux.core.errors import Closed
from polymux.core.implementation import NativeFunction
from polymux.core.status import TaskStatus
from polymux.core.task_view import Access, BufferView
from polymux.device.host_arrays import typed
from polymux.device.protocol import LaunchError, LaunchingStream, Operand, Shapes, Stream
from polymux.segment import SegmentError, TaskRecord, Worker
from polymux.server.arguments import Ref, check_buffers, check_scalars
from polymux.server.health import LOST_AFTER
from polymux.server.kernels import BARRIER, FIRST_ID, TO_HOST
from polymux.server.measurement import Measurements
from polymux.server.placement import HOST, READ, WRITE, Lease, Want
from polymux.server.placing import BufferChangedError, ContentLostError, DoesNotFitError
from polymux.server.residency import Residency
from polymux.server.result_shapes import report_shapes
from polymux.server.session import Session, TaskQueue
from polymux.server.started import BoundQueue, ElsewhereError, Held, Key, Ready, Started
from polymux.server.transfer import CopyFailedError
from polymux.server.version import prepare_version
from polymux.server.waiting import Relieve
from polymux.server.working_sets import WorkingSets

KEPT = 64
"""Sets of buffers whose operands are kept for one kernel of one queue."""
HELD_BY = 8
"""Tasks that use buffers without asking for them again, lest others who want them never get their turn."""


class Execution:
    """What one accelerator thread does with a task.

    Parameters
    ----------
    device : DeviceSpec
    stream : Stream
        The thread's own.
    location : int
        Where the device's kernels find their data: `HOST` or its own memory.
    worker : Worker
        The thread's own.
    residency : Residency
    measurements : Measurements
    """

    def __init__(
        self,
        device: DeviceSpec,
        stream: Stream,
        location: int,
        worker: Worker,
        residency: Residency,
        measurements: Measurements,
    ) -> None:
        self._device = device
        self._stream = stream
        self._location = location
        self._residency = residency
        self._measurements = measurements
        ahead = isinstance(stream, LaunchingStream) and device.launch_ahead > 1
        self._launching: LaunchingStream | None = stream if ahead else None  # type: ignore[assignment]
        self._last_end_ns = 0
        self._resting: tuple[Ready, Key, Held] | None = None
        self._kept = WorkingSets(worker, residency, location)

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

    def start(
        self, bound: BoundQueue, ready: Ready, task: TaskRecord, refs: list[Ref], relieve: Relieve
    ) -> Started:
        """Start a task here, its data brought before; it has ended where the stream cannot start ahead.

        Parameters
        ----------
        bound, ready, task, refs
        relieve : callable
            Ends the oldest task under way, which may hold what this one needs; False when there is none.

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
        if self._location == HOST:
            operands = ready.operands.get(key)
            if operands is None:
                operands = self._host_operands(bound, ready, refs, key, relieve)
            start_ns = monotonic_ns()
            shapes = self._launch(ready, operands)
            self._ended(ready, bound.queue.session, refs, start_ns, shapes)
            return Started(bound, task)
        if ready.native:
            self._run_native(bound, ready, refs, key, relieve)
            return Started(bound, task)
        held = ready.held.get(key)
        if self._resting is not None and self._resting[2] is held and held.uses < HELD_BY:
            self._resting = None
        else:
            self.let_rest()
            held = ready.held.get(key)
        if held is None or held.uses >= HELD_BY:
            held = self._hold(bound, ready, refs, key, relieve)
        held.tasks += 1
        held.uses += 1
        started = Started(bound, task, None, ready, refs, key, held, monotonic_ns())
        try:
            if self._launching is not None:
                assert ready.prepared is not None
                started.launch = self._launching.start(ready.prepared, held.operands, ready.scalars)
                return started
            shapes = self._launch(ready, held.operands)
        except BaseException:
            self._let_go(started)
            raise
        self._let_go(started)
        self._ended(ready, bound.queue.session, refs, started.start_ns, shapes)
        return started

    def finish(self, started: Started) -> None:
        """Wait for the end of a task that was started; its buffers are free then.

        Raises
        ------
        LaunchError
            Whatever went wrong, with the status for the task.
        """
        if started.launch is None:
            return
        try:
            shapes = started.launch.wait()
        finally:
            self._let_go(started)
        assert started.ready is not None
        session = started.bound.queue.session
        self._ended(started.ready, session, started.refs, started.start_ns, shapes)

    @property
    def holds_on(self) -> bool:
        """Whether buffers are held that no task uses, in case that the next one does."""
        return self._resting is not None or bool(self._kept)

    def let_rest(self) -> bool:
        """Let go of buffers that no task uses; False when none are held. To be called before anything is waited for."""
        if self._resting is None:
            return self._kept.end_all()
        ready, key, held = self._resting
        self._resting = None
        if ready.held.get(key) is held:
            del ready.held[key]
        self._residency.release(held.lease)
        self._kept.end_all()
        return True

    def abandon(self, held: dict[int, Held]) -> None:
        """Let go of all buffers at once: these, by their identity, and what is kept for tasks to come."""
        if self._resting is not None:
            rests = self._resting[2]
            held = {**held, id(rests): rests}
            self._resting = None
        for each in held.values():
            self._residency.release(each.lease)
        self._kept.end_all()

    def forget(self, queue: TaskQueue, last: bool) -> None:
        """Keep nothing of a queue that was let go of, and no scratch memory when it was the last one here."""
        self._kept.forget(queue.id)
        if last and self._launching is not None:
            self._launching.trim()

    def bring(
        self,
        session: Session,
        queue: TaskQueue,
        refs: list[Ref],
        location: int,
        relieve: Relieve,
        also: Sequence[Want] = (),
    ) -> Lease:
        """Bring a task's buffers to a place, and hold others as well that are there (`Residency.acquire`).

        Raises
        ------
        LaunchError
            OUT_OF_MEMORY or BAD_BUFFER, in words, or what the device says.
        """
        wants = [Want(session.home(ref[0], ref[1], ref[5]), ref[6], ref[2]) for ref in refs]
        stream = self._stream if self._location != HOST else None
        try:
            return self._acquire(location, wants, queue.id, stream, relieve, also)
        except DoesNotFitError as error:
            raise LaunchError(TaskStatus.OUT_OF_MEMORY, str(error)) from error
        except ContentLostError as error:
            raise ElsewhereError(str(error)) from error
        except CopyFailedError as error:
            if error.location == self._location:
                raise LaunchError(TaskStatus.DEVICE_FAILED, str(error)) from error
            raise ElsewhereError(f"its data cannot be brought here: {error}") from error
        except (BufferChangedError, SegmentError) as error:
            raise LaunchError(TaskStatus.BAD_BUFFER, str(error)) from error
        except Closed as error:
            raise LaunchError(TaskStatus.CANCELLED, str(error)) from error

    def _acquire(
        self,
        location: int,
        wants: list[Want],
        queue: str,
        stream: Stream | None,
        relieve: Relieve,
        also: Sequence[Want],
    ) -> Lease:
        """Bring buffers; a copy out of another device is tried again until that one counts as lost."""
        for _ in range(LOST_AFTER):
            try:
                return self._residency.acquire(location, wants, queue, stream, relieve, also)
            except CopyFailedError as error:
                if error.location == self._location:
                    raise
        return self._residency.acquire(location, wants, queue, stream, relieve, also)

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
            implementation, prepared = prepare_version(self._device, self._stream, kernel)
        except LaunchError as error:
            return Ready(kernel, failure=(error.code, error.message))
        is_native = isinstance(implementation, NativeFunction)
        native = is_native and self._device.api == "cpu" and self._launching is None
        return Ready(kernel, prepared, native=native)

    def _run_native(
        self, bound: BoundQueue, ready: Ready, refs: list[Ref], key: Key, relieve: Relieve
    ) -> None:
        """Run a C function on the device's own memory; further ones on the same buffers may run without Python."""
        views = self._views(ready, refs, key)
        queue = bound.queue
        kept, others = self._kept.begin(queue, refs)
        try:
            lease = self.bring(queue.session, queue, refs, self._location, relieve, others)
        except LaunchError:
            if not others:
                raise
            self._kept.start_anew(kept)
            lease = self.bring(queue.session, queue, refs, self._location, relieve)
        try:
            operands = [Operand(view, None, lease.memory(view.slot)) for view in views]
            start_ns = monotonic_ns()
            shapes = self._launch(ready, operands)
            end_ns = monotonic_ns()
        except BaseException:
            self._residency.release(lease)
            raise
        self._kept.keep(queue, kept, lease, start_ns, end_ns)
        self._ended(ready, queue.session, refs, start_ns, shapes)

    def _views(self, ready: Ready, refs: list[Ref], key: Key) -> list[BufferView]:
        """Check a task's buffers, once for each set of them."""
        views = ready.views.get(key)
        if views is None:
            check_buffers(ready.kernel.spec, refs)
            if len(ready.views) >= KEPT:
                ready.views.clear()
            views = ready.views[key] = [_view(ref) for ref in refs]
        return views

    def _hold(self, bound: BoundQueue, ready: Ready, refs: list[Ref], key: Key, relieve: Relieve) -> Held:
        views = self._views(ready, refs, key)
        lease = self.bring(bound.queue.session, bound.queue, refs, self._location, relieve)
        operands = [Operand(view, None, lease.memory(view.slot)) for view in views]
        held = ready.held[key] = Held(lease, operands)
        return held

    def _let_go(self, started: Started) -> None:
        held, ready = started.held, started.ready
        assert held is not None
        assert ready is not None
        held.tasks -= 1
        if held.tasks:
            return
        self.let_rest()
        self._resting = (ready, started.key, held)
        if self._launching is None:
            self.let_rest()

    def _host_operands(
        self, bound: BoundQueue, ready: Ready, refs: list[Ref], key: Key, relieve: Relieve
    ) -> list[Operand]:
        check_buffers(ready.kernel.spec, refs)
        session = bound.queue.session
        if any(ref[7] != HOST for ref in refs):
            self.bring(session, bound.queue, refs, HOST, relieve)
        operands = [_host_operand(session, ref) for ref in refs]
        if all(ref[7] == HOST for ref in refs):
            if len(ready.operands) >= KEPT:
                ready.operands.clear()
            ready.operands[key] = operands
        return operands

    def _launch(self, ready: Ready, operands: list[Operand]) -> Shapes | None:
        assert ready.prepared is not None
        return self._stream.launch(ready.prepared, operands, ready.scalars)

    def _ended(
        self, ready: Ready, session: Session, refs: list[Ref], start_ns: int, shapes: Shapes | None
    ) -> None:
        end_ns = monotonic_ns()
        duration_ns = end_ns - max(start_ns, self._last_end_ns)  # a stream runs one after the other
        self._last_end_ns = end_ns
        self._measurements.launched(self._device.id, ready.kernel.id, duration_ns)
        report_shapes(ready, session, refs, shapes)


def is_reserved(kernel_id: int) -> bool:
    """Tell whether a number is one of the runtime's own."""
    return kernel_id < FIRST_ID


def run_reserved(
    execution: Execution, bound: BoundQueue, kernel_id: int, refs: list[Ref], relieve: Relieve
) -> None:
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
        execution.bring(bound.queue.session, bound.queue, whole, HOST, relieve)
    elif kernel_id != BARRIER:
        raise LaunchError(TaskStatus.UNKNOWN_KERNEL, f"the number {kernel_id} is reserved and no kernel")


def _view(ref: Ref) -> BufferView:
    slot, _, access, dtype, shape, offset, _, _ = ref
    element = DType(dtype)
    return BufferView(slot, element, shape, prod(shape) * element.itemsize, Access(access), offset)


def _host_operand(session: Session, ref: Ref) -> Operand:
    view = _view(ref)
    return Operand(view, typed(session.segment.view(ref[5], ref[6]), view))
