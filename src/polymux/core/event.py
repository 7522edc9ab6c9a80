"""What happened: everything that the engine is told, in the order in which it happened.

Times and estimates are in nanoseconds. Each event is frozen; `polymux.sched.recording` gives its JSON form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polymux.core.device_spec import DeviceSpec, StreamSpec
from polymux.core.ids import DeviceId, KernelName, QueueId, SessionId, StreamId

NORMAL_WEIGHT = 100
MAX_WEIGHT = 10_000


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
    weight : int
        The session's claim on device time relative to others, 1 to 10,000; 100 is normal.
    memory_nbytes : int
        How many bytes of data its tasks use, as the client expects; 0: not said.
    pinned_stream : StreamId, optional
        The only stream on which its tasks may run, one of `pinned`.
    """

    queue: QueueId
    session: SessionId
    application: str
    priority: int = 0
    pinned: DeviceId | None = None
    weight: int = NORMAL_WEIGHT
    memory_nbytes: int = 0
    pinned_stream: StreamId | None = None


@dataclass(frozen=True, slots=True)
class QueueClosed:
    """A session closed a queue, or is gone. A bound queue is revoked and ends when its thread lets go of it."""

    queue: QueueId


@dataclass(frozen=True, slots=True)
class QueueReleased:
    """An accelerator thread let go of a queue at a task boundary.

    Exactly once for each `Bind`, unless a `KernelMissing`, `HomePossible` or `DeviceWished` says so.
    """

    queue: QueueId


@dataclass(frozen=True, slots=True)
class KernelMissing:
    """The kernel of a queue's head task has no implementation on the current device.

    The accelerator thread has let go of the queue, with that task at its head.

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

    Raised once for each such task. The accelerator thread has let go of the queue, with that task at its head.

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
class DeviceWished:
    """The head task of a queue wishes to run on another device, which has its kernel.

    Raised once for each such task. The accelerator thread has let go of the queue, with that task at its head.
    """

    queue: QueueId
    device: DeviceId


@dataclass(frozen=True, slots=True)
class MigrateRequested:
    """Somebody wants a queue on another device; answered by exactly one `Answer` with the same `request`."""

    queue: QueueId
    device: DeviceId
    request: int


@dataclass(frozen=True, slots=True)
class QueuePrepared:
    """The end of a `Prepare`.

    Parameters
    ----------
    queue : QueueId
    device : DeviceId
    problem : str, optional
        Why the device cannot take the queue's data, with sizes; None: they are there.
    """

    queue: QueueId
    device: DeviceId
    problem: str | None = None


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
class QueueLoad:
    """What a queue did since the last report, and where its data are.

    Parameters
    ----------
    pending : int
        Tasks that wait in it now.
    tasks : int
        Tasks that ended since the last report.
    busy_ns : int
        Time in which streams ran its tasks since the last report.
    data : mapping
        Bytes of the buffers that it used last, by the device whose memory holds them, or ``"host"``.
    """

    pending: int = 0
    tasks: int = 0
    busy_ns: int = 0
    data: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """A device's memory, and what copies cost.

    Parameters
    ----------
    used_nbytes : int
        Bytes of its memory that buffers take now.
    into_ps_per_byte, out_ps_per_byte : int, optional
        Measured time for a byte to come in from the host and to go out to it, in ps; None: never measured.
    """

    used_nbytes: int = 0
    into_ps_per_byte: int | None = None
    out_ps_per_byte: int | None = None


@dataclass(frozen=True, slots=True)
class LoadReported:
    """The load of streams, queues and devices; reported before each `QueueOpened` and before each `Tick`.

    Parameters
    ----------
    loads : mapping
        Streams that are left out were idle.
    queues : mapping
        Queues that are left out did nothing, have nothing to do, and their data are where they were.
    devices : mapping
        Those that are left out are as they were.
    """

    loads: Mapping[StreamId, StreamLoad]
    queues: Mapping[QueueId, QueueLoad] = field(default_factory=dict)
    devices: Mapping[DeviceId, DeviceLoad] = field(default_factory=dict)


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
    | DeviceWished
    | MigrateRequested
    | QueuePrepared
    | LoadReported
    | Tick
)
HeldHead = KernelMissing | HomePossible | DeviceWished
"""A thread let go of a queue and asks where its head task is to run; answered by a `Bind` in the same step."""

EVENTS: tuple[type[Event], ...] = (
    DeviceAdded,
    DeviceLost,
    QueueOpened,
    QueueClosed,
    QueueReleased,
    KernelMissing,
    HomePossible,
    DeviceWished,
    MigrateRequested,
    QueuePrepared,
    LoadReported,
    Tick,
)
