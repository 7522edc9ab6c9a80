"""Every error that Polymux raises: one root, few children, each with its values.

A wait that takes too long raises the builtin `TimeoutError`.

Notes
-----
All of them keep their constructor's arguments in ``args``, so they survive pickling between processes.
"""

from __future__ import annotations

import re
from typing import Any

from polymux.core.status import TaskStatus

_OUTPUT = re.compile(r"output '([^']*)' ")
_NEEDED = re.compile(r"needs (\d+) bytes")
"""A completion carries a status and a text, so these are read from the text."""


class PolymuxError(Exception):
    """The root: ``except PolymuxError`` catches whatever this library raises on its own account."""


class NoServer(PolymuxError):
    """No server listens at the socket that was asked for."""


class ServerGone(PolymuxError):
    """The server went away while this client was connected; connect again."""


class QueueFull(PolymuxError):
    """The queue's ring has no free slot and the caller chose not to wait."""


class SegmentFull(PolymuxError):
    """The session's segment has no free range of that size."""


class Closed(PolymuxError):
    """The client, queue or buffer was closed before this call."""


class InvalidRequest(PolymuxError, ValueError):
    """A call or request with a value that cannot be: the message names the value and the remedy."""


class ProtocolMismatch(PolymuxError):
    """The two ends speak different versions of the protocol or of the segment's layout."""


class PermissionDenied(PolymuxError):
    """The peer may not do this."""


class DeviceUnavailable(PolymuxError):
    """A device cannot be used here.

    Parameters
    ----------
    reason : str
        One sentence for the operator, shown by ``polymux devices``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ConfigError(PolymuxError):
    """A configuration that cannot be followed.

    Parameters
    ----------
    file : str
        Where it was read, or ``"command line"``.
    key, value : str
        The setting and what it was set to.
    remedy : str
        What would be right.
    """

    def __init__(self, file: str, key: str, value: object, remedy: str) -> None:
        super().__init__(file, key, value, remedy)
        self.file = file
        self.key = key
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.file}: {self.key} = {self.value!r}: {self.remedy}"


class BadDecision(PolymuxError):
    """A policy returned a decision that the engine must not carry out: a defect of that policy.

    Parameters
    ----------
    decision : object
        The decision, or what is missing.
    problem : str
        Why it cannot be carried out.
    story : tuple of str
        The last events and decisions that concern the same queue, oldest first.

    Attributes
    ----------
    decisions : tuple of Decision
        What the driver has to carry out all the same; filled in by the engine.
    """

    def __init__(self, decision: object, problem: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(decision, problem, story)
        self.decision = decision
        self.problem = problem
        self.story = story
        self.decisions: tuple[Any, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.problem}: {self.decision}"]
        if self.story:
            lines.append("what happened before:")
            lines.extend(f"  {line}" for line in self.story)
        return "\n".join(lines)


class LeaseLost(PolymuxError):
    """A job's lease was taken away for good: it did not give way, or no device is left for it.

    Parameters
    ----------
    reason : str
        One sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TaskFailed(PolymuxError):
    """A task ended with something else than OK.

    Parameters
    ----------
    code : TaskStatus
        How it ended; the plain number when this version knows no name for it.
    queue : str
        The queue's id.
    sequence : int
        The task's number in its queue, from 1; 0 when it was refused before it had one.
    kernel : str
        The kernel's name, or its number when it has no name here.
    message : str
        What happened and what to do about it.
    """

    def __init__(self, code: TaskStatus | int, queue: str, sequence: int, kernel: str, message: str) -> None:
        super().__init__(code, queue, sequence, kernel, message)
        self.code = code
        self.queue = queue
        self.sequence = sequence
        self.kernel = kernel
        self.message = message

    def __str__(self) -> str:
        name = self.code.name if isinstance(self.code, TaskStatus) else f"status {self.code}"
        return f"task {self.sequence} of queue {self.queue} (kernel {self.kernel!r}): {name}: {self.message}"


class InvalidTask(TaskFailed):
    """INVALID_TASK: the descriptor breaks the layout's rules."""


class UnknownKernel(TaskFailed):
    """UNKNOWN_KERNEL: no kernel of that name or number is registered."""


class BadArgument(TaskFailed):
    """BAD_ARGUMENT: wrong number, type, shape or value of an argument."""


class BadBuffer(TaskFailed):
    """BAD_BUFFER: a buffer is freed, foreign or out of its bounds."""


class NoDevice(TaskFailed):
    """NO_DEVICE: no device that may run it has an implementation, or none is left."""


class OutOfDeviceMemory(TaskFailed):
    """OUT_OF_MEMORY: its buffers do not fit into the device's memory."""


class KernelFailed(TaskFailed):
    """KERNEL_FAILED: the kernel raised or returned a failure."""


class KernelCrashed(TaskFailed):
    """KERNEL_CRASHED: the worker process that ran the kernel died."""


class Cancelled(TaskFailed):
    """CANCELLED: its queue or session was closed before it ran."""


class DeviceFailed(TaskFailed):
    """DEVICE_FAILED: the device or its driver failed while it ran."""


class OutputTooSmall(TaskFailed):
    """OUTPUT_TOO_SMALL: the result does not fit into the buffer that was given.

    Attributes
    ----------
    output : str or None
        Name of the output, where the device says which one it was.
    needed_nbytes : int or None
        Size of its result in bytes.
    """

    def __init__(self, code: TaskStatus | int, queue: str, sequence: int, kernel: str, message: str) -> None:
        super().__init__(code, queue, sequence, kernel, message)
        output, needed = _OUTPUT.search(message), _NEEDED.search(message)
        self.output = output[1] if output is not None else None
        self.needed_nbytes = int(needed[1]) if needed is not None else None


class Rejected(TaskFailed):
    """REJECTED: the policy did not admit it."""


_BY_STATUS: dict[int, type[TaskFailed]] = {
    TaskStatus.INVALID_TASK: InvalidTask,
    TaskStatus.UNKNOWN_KERNEL: UnknownKernel,
    TaskStatus.BAD_ARGUMENT: BadArgument,
    TaskStatus.BAD_BUFFER: BadBuffer,
    TaskStatus.NO_DEVICE: NoDevice,
    TaskStatus.OUT_OF_MEMORY: OutOfDeviceMemory,
    TaskStatus.KERNEL_FAILED: KernelFailed,
    TaskStatus.KERNEL_CRASHED: KernelCrashed,
    TaskStatus.CANCELLED: Cancelled,
    TaskStatus.DEVICE_FAILED: DeviceFailed,
    TaskStatus.OUTPUT_TOO_SMALL: OutputTooSmall,
    TaskStatus.REJECTED: Rejected,
}

_BY_CODE: dict[str, type[PolymuxError]] = {
    error.__name__: error
    for error in (
        NoServer,
        ServerGone,
        QueueFull,
        SegmentFull,
        Closed,
        InvalidRequest,
        ProtocolMismatch,
        PermissionDenied,
        DeviceUnavailable,
    )
}


def task_failed(status: int, queue: str, sequence: int, kernel: str, message: str) -> TaskFailed:
    """Build the error for a task that ended with `status`.

    Parameters
    ----------
    status : int
        A `TaskStatus` other than OK; a number that no status has (a newer server) gives a plain `TaskFailed`.
    queue, sequence, kernel, message
        As in `TaskFailed`.

    Raises
    ------
    ValueError
        If `status` is OK: such a task did not fail.
    """
    if status == TaskStatus.OK:
        raise ValueError(f"task {sequence} of queue {queue} ended with OK, there is no error to build")
    try:
        code = TaskStatus(status)
    except ValueError:
        return TaskFailed(status, queue, sequence, kernel, message)
    return _BY_STATUS[code](code, queue, sequence, kernel, message)


def request_failed(code: str, message: str) -> PolymuxError:
    """Build the error that a server's reply names.

    Parameters
    ----------
    code : str
        Class name of an error of this file that a message alone can build.
    message : str
        Its text.

    Returns
    -------
    PolymuxError
        Of that class; of the root class, with the code in its text, when this version does not know the code.
    """
    error = _BY_CODE.get(code)
    return error(message) if error is not None else PolymuxError(f"{code}: {message}")
