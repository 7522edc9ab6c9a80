"""What happened: everything that the engine is told, in the order in which it happened.

Times and estimates are in nanoseconds. Each event is frozen; `polymux.sched.recording` gives its JSON form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polymux.core.device_spec import DeviceSpec, StreamSpec
from polymux.core.ids import DeviceId, KernelName, QueueId, SessionId, StreamId


@dataclass(frozen=True, slots=True)
class DeviceAdded:
    """A device is there (again) and its accelerator threads wait for queues."""

    spec: DeviceSpec
    streams: tuple[StreamSpec, ...]


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """A device no longer works. Its bound queues are revoked and follow with one `QueueReleased` each."""

    device: DeviceId
    reason: str


@dataclass(frozen=True, slots=True)
class QueueOpened:
    """A session opened a queue.

    Parameters
    ----------
    queue : QueueId
    session : SessionId
    application : str
        The name that the client gave.
    priority : int
        Larger is more urgent.
    pinned : DeviceId, optional
        The only device on which its tasks may run.
    """

    queue: QueueId
    session: SessionId
    application: str
    priority: int = 0
    pinned: DeviceId | None = None


@dataclass(frozen=True, slots=True)
class QueueClosed:
    """A session closed a queue, or is gone. A bound queue is revoked and ends with its `QueueReleased`."""

    queue: QueueId


@dataclass(frozen=True, slots=True)
class QueueReleased:
    """An accelerator thread let go of a queue at a task boundary; exactly once for each `Bind`."""

    queue: QueueId


@dataclass(frozen=True, slots=True)
class KernelMissing:
    """The kernel of a queue's head task has no implementation on the current device.

    The head is held until the answer: a `Revoke` (the queue moves), a `FailHead` or a `Stay` (try again).

    Parameters
    ----------
    queue : QueueId
    kernel : KernelName
    devices : tuple of DeviceId
        Those that have an implementation.
    """

    queue: QueueId
    kernel: KernelName
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class HomePossible:
    """A queue is away from home because of a missing kernel, and its head task could run at home.

    Raised before each such task. The head is held until the answer: `Revoke` (the queue goes home) or `Stay`.

    Parameters
    ----------
    queue : QueueId
    kernel : KernelName
    transfer_ns : int, optional
        Estimated time to bring the head task's data home; None: never measured.
    gain_ns : int, optional
        Estimated time by which the head task runs faster at home; negative: slower; None: never measured.
    """

    queue: QueueId
    kernel: KernelName
    transfer_ns: int | None = None
    gain_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MigrateRequested:
    """Somebody wants a queue on another device; answered by exactly one `Answer` with the same `request`."""

    queue: QueueId
    device: DeviceId
    request: int


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """What a stream did since the last report.

    Parameters
    ----------
    pending : int
        Tasks that wait in its queues now.
    busy_ns : int
        Time in which it ran tasks since the last report.
    queues : int
        Queues bound to it now.
    """

    pending: int = 0
    busy_ns: int = 0
    queues: int = 0


@dataclass(frozen=True, slots=True)
class LoadReported:
    """The load of streams, reported from time to time; streams that are left out were idle."""

    loads: Mapping[StreamId, StreamLoad]


@dataclass(frozen=True, slots=True)
class Tick:
    """A time that a `WakeAt` asked for has come."""


Event = (
    DeviceAdded
    | DeviceLost
    | QueueOpened
    | QueueClosed
    | QueueReleased
    | KernelMissing
    | HomePossible
    | MigrateRequested
    | LoadReported
    | Tick
)
EVENTS: tuple[type[Event], ...] = (
    DeviceAdded,
    DeviceLost,
    QueueOpened,
    QueueClosed,
    QueueReleased,
    KernelMissing,
    HomePossible,
    MigrateRequested,
    LoadReported,
    Tick,
)
