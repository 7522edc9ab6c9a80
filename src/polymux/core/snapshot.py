"""What the engine knows, as a policy sees it: frozen values in read-only mappings.

The views are named tuples because the engine replaces some at every event, which for them takes a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from polymux.core.device_spec import DeviceSpec
from polymux.core.event import NORMAL_WEIGHT, DeviceLoad, QueueLoad, StreamLoad
from polymux.core.ids import DeviceId, QueueId, SessionId, StreamId


class QueueState(StrEnum):
    """Where a queue stands between the policy and the accelerator threads."""

    WAITING = "waiting"
    """Bound nowhere; the policy is asked for a stream."""
    BOUND = "bound"
    """An accelerator thread drains it."""
    PREPARING = "preparing"
    """An accelerator thread drains it while its data are copied to its `target`."""
    HELD = "held"
    """Its accelerator thread let go of it and asks where its head task is to run; lasts for that event only."""
    REVOKING = "revoking"
    """Taken back, but its accelerator thread has not let go yet."""
    STRANDED = "stranded"
    """No device may run it: its tasks fail until one is added."""
    CLOSING = "closing"
    """Closed, but its accelerator thread has not let go yet."""


IDLE = StreamLoad()
"""The load of a stream that no report has named."""
NO_LOAD = QueueLoad()
"""The load of a queue that no report has named."""
NOT_BARRED: Mapping[DeviceId, int] = MappingProxyType({})
UNKNOWN = DeviceLoad()
"""The load of a device that no report has named."""


class DeviceView(NamedTuple):
    """A device.

    Parameters
    ----------
    spec : DeviceSpec
    streams : tuple of StreamId
        Without those that are a part of another one.
    lost : str, optional
        Why it no longer works; None: it works.
    load : DeviceLoad
        As last reported.
    """

    spec: DeviceSpec
    streams: tuple[StreamId, ...]
    lost: str | None = None
    load: DeviceLoad = UNKNOWN


class StreamView(NamedTuple):
    """A stream of a device that works.

    Parameters
    ----------
    id : StreamId
    device : DeviceId
    rank : int
        Place in a fixed order that visits all devices before it visits the second stream of one.
    queues : int
        Queues bound to it now, those that are being revoked among them.
    turn : int
        Number of the last bind that went to it, counted over all streams; 0: none yet.
    load : StreamLoad
        As last reported.
    memory_nbytes : int
        Sum of the `memory_nbytes` of its queues.
    """

    id: StreamId
    device: DeviceId
    rank: int
    queues: int = 0
    turn: int = 0
    load: StreamLoad = IDLE
    memory_nbytes: int = 0


class QueueView(NamedTuple):
    """A queue.

    Parameters
    ----------
    id, session, application, priority, pinned, weight, memory_nbytes, pinned_stream
        As in `QueueOpened`. The engine itself binds a queue that is pinned to a stream.
    state : QueueState
    stream : StreamId, optional
        Where it is bound (also while PREPARING, REVOKING and CLOSING), or was until now (HELD).
    device : DeviceId, optional
        The device of that stream.
    bound_weight : int
        The weight that it has there.
    bound_ns : int
        When it came to that device, in ns.
    target : DeviceId, optional
        The device to which it is moving.
    home : DeviceId, optional
        Where it belongs while it is away at a device that has a kernel which its home lacks.
    chances : int
        Tasks since it went away that could have run at home.
    credit_ns : int
        Time that these would have gained at home, as far as it is known, in ns.
    returned_ns : int, optional
        When it last came home.
    stays_ns : tuple of int
        How long its last stays at home lasted, from coming back to going away again, in ns; the latest last.
    barred : mapping
        Devices that could not take its data, and until when no policy may try again, in ns.
    """

    id: QueueId
    session: SessionId
    application: str
    priority: int = 0
    pinned: DeviceId | None = None
    state: QueueState = QueueState.WAITING
    stream: StreamId | None = None
    device: DeviceId | None = None
    target: DeviceId | None = None
    home: DeviceId | None = None
    chances: int = 0
    credit_ns: int = 0
    returned_ns: int | None = None
    stays_ns: tuple[int, ...] = ()
    weight: int = NORMAL_WEIGHT
    memory_nbytes: int = 0
    bound_weight: int = NORMAL_WEIGHT
    bound_ns: int = 0
    barred: Mapping[DeviceId, int] = NOT_BARRED
    pinned_stream: StreamId | None = None

    @property
    def drained(self) -> bool:
        """Whether an accelerator thread drains it and was not told to let go."""
        return self.state in (QueueState.BOUND, QueueState.PREPARING)

    def fits(self, device: DeviceSpec) -> bool:
        """Whether a device's memory is large enough for what the client expects, were it empty."""
        return self.memory_nbytes <= device.memory_nbytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's state.

    Parameters
    ----------
    devices : mapping
        Every device ever added, in that order; the lost ones too.
    streams : mapping
        The streams of devices that work, by rank. Those that are a part of another one are left out: only queues that
        are pinned to them get there, and these are bound by the engine.
    queues : mapping
        Every open or closing queue, in the order of opening.
    waiting : tuple of QueueId
        The queues for which a stream is wanted, longest wait first.
    loads : mapping
        Of queues, as last reported; those that no report has named are missing.

    Notes
    -----
    What a policy is given costs the engine nothing per queue: the mappings show the engine's own dictionaries
    and are good for the duration of that call. `Engine.snapshot` returns one that stays as it is.
    """

    devices: Mapping[DeviceId, DeviceView]
    streams: Mapping[StreamId, StreamView]
    queues: Mapping[QueueId, QueueView]
    waiting: tuple[QueueId, ...] = ()
    loads: Mapping[QueueId, QueueLoad] = field(default_factory=dict)

    def load_of(self, queue: QueueId) -> QueueLoad:
        """Give a queue's load as last reported."""
        return self.loads.get(queue, NO_LOAD)

    def describe_devices(self) -> str:
        """List the devices for a message to people, with the reason for those that are lost."""
        texts = [
            str(device) if view.lost is None else f"{device} (lost: {view.lost})"
            for device, view in self.devices.items()
        ]
        return ", ".join(texts) or "none"
