"""What the engine knows, as a policy sees it: frozen values in read-only mappings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from polymux.core.device_spec import DeviceSpec
from polymux.core.event import StreamLoad
from polymux.core.ids import DeviceId, QueueId, SessionId, StreamId


class QueueState(StrEnum):
    """Where a queue stands between the policy and the accelerator threads."""

    WAITING = "waiting"
    """Bound nowhere; the policy is asked for a stream."""
    BOUND = "bound"
    """An accelerator thread drains it."""
    REVOKING = "revoking"
    """Taken back, but its accelerator thread has not let go yet."""
    STRANDED = "stranded"
    """No device may run it: its tasks fail until one is added."""
    CLOSING = "closing"
    """Closed, but its accelerator thread has not let go yet."""


IDLE = StreamLoad()
"""The load of a stream that no report has named."""


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device.

    Parameters
    ----------
    spec : DeviceSpec
    streams : tuple of StreamId
    lost : str, optional
        Why it no longer works; None: it works.
    """

    spec: DeviceSpec
    streams: tuple[StreamId, ...]
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class StreamView:
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
    """

    id: StreamId
    device: DeviceId
    rank: int
    queues: int = 0
    turn: int = 0
    load: StreamLoad = IDLE


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue.

    Parameters
    ----------
    id, session, application, priority, pinned
        As in `QueueOpened`.
    state : QueueState
    stream : StreamId, optional
        Where it is bound (also while REVOKING and CLOSING).
    device : DeviceId, optional
        The device of that stream.
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's state.

    Parameters
    ----------
    devices : mapping
        Every device ever added, in that order; the lost ones too.
    streams : mapping
        The streams of devices that work, by rank.
    queues : mapping
        Every open or closing queue, in the order of opening.
    waiting : tuple of QueueId
        The queues for which a stream is wanted, longest wait first.

    Notes
    -----
    What a policy is given costs the engine nothing per queue: the mappings show the engine's own dictionaries
    and are good for the duration of that call. `Engine.snapshot` returns one that stays as it is.
    """

    devices: Mapping[DeviceId, DeviceView]
    streams: Mapping[StreamId, StreamView]
    queues: Mapping[QueueId, QueueView]
    waiting: tuple[QueueId, ...] = ()

    def describe_devices(self) -> str:
        """List the devices for a message to people, with the reason for those that are lost."""
        texts = [
            str(device) if view.lost is None else f"{device} (lost: {view.lost})"
            for device, view in self.devices.items()
        ]
        return ", ".join(texts) or "none"
