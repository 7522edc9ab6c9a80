"""What to do: everything that the engine tells its driver, in order, each with a reason in words."""

from __future__ import annotations

from dataclasses import dataclass

from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.core.status import TaskStatus


@dataclass(frozen=True, slots=True)
class Bind:
    """Let the accelerator thread of `stream` drain `queue`; ends an earlier `FailAll`."""

    queue: QueueId
    stream: StreamId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Take a bound queue back at the next task boundary; the driver reports `QueueReleased` then."""

    queue: QueueId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move a queue to another device.

    Made by policies only: the engine carries it out as a `Revoke` and, after the release, a `Bind`.
    """

    queue: QueueId
    device: DeviceId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stay:
    """Answer to `KernelMissing` and `HomePossible`: the queue stays, run (or look again at) its head here."""

    queue: QueueId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FailHead:
    """Complete the head task of a bound queue with `status` and `message`, then go on with the next."""

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


@dataclass(frozen=True, slots=True)
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


Decision = Bind | Revoke | Migrate | Stay | FailHead | FailAll | Reject | WakeAt | Answer
DECISIONS: tuple[type[Decision], ...] = (
    Bind,
    Revoke,
    Migrate,
    Stay,
    FailHead,
    FailAll,
    Reject,
    WakeAt,
    Answer,
)
