"""What to do: everything that the engine tells its driver, in order, each with a reason in words."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.event import NORMAL_WEIGHT
from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.core.status import TaskStatus
from polymux.core.value import value


@dataclass(frozen=True, slots=True)
class Bind:
    """Let the accelerator thread of `stream` drain `queue`; ends an earlier `FailAll`.

    Among the queues of a stream that have the same priority, each session gets device time by its `weight` (1 to
    10,000; 100 is normal).
    """

    queue: QueueId
    stream: StreamId
    reason: str = ""
    weight: int = NORMAL_WEIGHT


@dataclass(frozen=True, slots=True)
class Weigh:
    """Give a bound queue another weight from the next task boundary on."""

    queue: QueueId
    weight: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Take a bound queue back at the next task boundary; the driver reports `QueueReleased` then.

    The report is a `KernelMissing`, `HomePossible` or `DeviceWished` when the thread let go of it meanwhile.
    """

    queue: QueueId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move a bound queue to another device.

    Made by policies only: the engine carries it out as a `Prepare`, then a `Revoke` and, after the release, a `Bind`.
    """

    queue: QueueId
    device: DeviceId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Copy what the pending tasks of a bound queue need to a device while the queue runs on.

    The driver reports `QueuePrepared` then. A later `Prepare`, `Revoke` or `Bind` of the queue makes it void.
    """

    queue: QueueId
    device: DeviceId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stay:
    """Answer to `KernelMissing`, `HomePossible` and `DeviceWished`: the queue stays on its stream.

    Made by policies only: the engine carries it out as a `Bind` to where the queue was.
    """

    queue: QueueId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FailHead:
    """Complete the task at the head of a queue with `status` and `message`; a `Bind` to its stream follows."""

    queue: QueueId
    status: TaskStatus
    message: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FailAll:
    """Complete all tasks of an unbound queue, present and future, with `status` until it is bound."""

    queue: QueueId
    status: TaskStatus
    message: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    """Refuse to open a queue; it does not exist. `message` is for the application."""

    queue: QueueId
    message: str
    reason: str = ""


@value
class WakeAt:
    """Send a `Tick` at time `at_ns` of the monotonic clock."""

    at_ns: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to the `MigrateRequested` with the same `request`."""

    request: int
    ok: bool
    message: str
    reason: str = ""


Decision = Bind | Weigh | Revoke | Migrate | Prepare | Stay | FailHead | FailAll | Reject | WakeAt | Answer
DECISIONS: tuple[type[Decision], ...] = (
    Bind,
    Weigh,
    Revoke,
    Migrate,
    Prepare,
    Stay,
    FailHead,
    FailAll,
    Reject,
    WakeAt,
    Answer,
)
