"""A task from its start to its end, and what is kept from one to the next: values of one accelerator thread."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

from polymux.core.errors import InvalidRequest
from polymux.core.status import TaskStatus
from polymux.core.task_view import BufferView
from polymux.device.protocol import Launch, LaunchError, Operand, Prepared
from polymux.segment import TaskRecord
from polymux.server.arguments import Ref
from polymux.server.kernels import Isolated, Kernel
from polymux.server.placement import READ, WRITE, Lease
from polymux.server.session import TaskQueue

Key = tuple[Ref, ...]


@dataclass(slots=True, eq=False)
class Held:
    """Buffers on the device, and the tasks under way that use them."""

    lease: Lease
    operands: list[Operand]
    tasks: int = 0
    uses: int = 0


@dataclass(slots=True, eq=False)
class Ready:
    """A kernel as one queue's tasks find it on one stream."""

    kernel: Kernel
    prepared: Prepared | None = None
    isolated: Isolated | None = None
    native: bool = False
    """Whether it is a C function that the processor runs."""
    failure: tuple[TaskStatus, str] | None = None
    """Why it cannot be prepared."""
    args: bytes | None = None
    scalars: dict[str, float | int | bool] = field(default_factory=dict)
    operands: dict[Key, list[Operand]] = field(default_factory=dict)
    """On host memory."""
    views: dict[Key, list[BufferView]] = field(default_factory=dict)
    """Of buffers that were checked, for memory of the device's own."""
    held: dict[Key, Held] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class BoundQueue:
    """A queue as one accelerator thread finds it, each time that it is bound there."""

    queue: TaskQueue
    version: int
    """Of the session's kernels, as `ready` knows them."""
    ready: dict[int, Ready] = field(default_factory=dict)
    under_way: int = 0
    """Tasks started, or ended behind such, that the client has not been told of."""


@dataclass(slots=True, eq=False)
class Started:
    """A task from its start until its client is told of its end."""

    bound: BoundQueue
    task: TaskRecord
    launch: Launch | None = None
    """None: it has ended already, and waits for those before it."""
    ready: Ready | None = None
    refs: list[Ref] = field(default_factory=list)
    key: Key = ()
    held: Held | None = None
    start_ns: int = 0
    code: TaskStatus = TaskStatus.OK
    message: str = ""
    blames: bool = False
    """Whether it failed because its device did."""
    expected: bool = True
    """Whether that is what a device or kernel said, and no surprise."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.launch is None or self.launch.ended()

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self.code, self.message = status_of(error)
        self.expected = isinstance(error, LaunchError)
        self.blames = self.code is TaskStatus.DEVICE_FAILED and not isinstance(error, ElsewhereError)


class ElsewhereError(LaunchError):
    """DEVICE_FAILED, but another device than the one that was to run the task."""

    def __init__(self, message: str) -> None:
        super().__init__(TaskStatus.DEVICE_FAILED, message)
        self.args = (message,)


class TakenBackError(Exception):
    """A task in hand goes back to its queue, because the ones before it do.

    Parameters
    ----------
    tasks : sequence of Started
        Those before it.
    """

    def __init__(self, tasks: Sequence[Started]) -> None:
        super().__init__()
        self.tasks = tasks


def may_run_again(tasks: Sequence[Started]) -> bool:
    """Whether tasks of one queue that follow each other give the same when all of them run once more.

    They do if each kernel is idempotent, and none reads what it or a later one writes.
    """
    written: set[int] = set()
    for started in reversed(tasks):
        if started.ready is None:  # a barrier, or refused before it could do anything
            continue
        written |= {ref[0] for ref in started.refs if ref[2] & WRITE}
        if not started.ready.kernel.spec.idempotent:
            return False
        if any(ref[2] & READ and ref[0] in written for ref in started.refs):
            return False
    return True


def status_of(error: Exception) -> tuple[TaskStatus, str]:
    """Give any exception a status and a message, so that its task ends."""
    if isinstance(error, LaunchError):
        return error.code, error.message
    if isinstance(error, InvalidRequest):
        return TaskStatus.BAD_ARGUMENT, str(error)
    if isinstance(error, MemoryError):
        return TaskStatus.OUT_OF_MEMORY, str(error) or "the host's memory is used up"
    return TaskStatus.DEVICE_FAILED, f"{type(error).__name__}: {error}"


def print_unexpected(error: Exception) -> None:
    """Tell the operator of an error that no device or kernel has put into words."""
    if not isinstance(error, LaunchError):
        traceback.print_exception(error)
