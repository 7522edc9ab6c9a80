"""What the engine knows: frozen views in dictionaries, replaced when something changes."""

from __future__ import annotations

from collections import deque
from dataclasses import fields
from types import MappingProxyType

from polymux.core.decision import Decision
from polymux.core.device_spec import StreamSpec, nested_streams
from polymux.core.errors import InvalidRequest
from polymux.core.event import DeviceAdded, Event, LoadReported, QueueLoad, QueueOpened
from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.core.snapshot import IDLE, DeviceView, QueueState, QueueView, Snapshot, StreamView

STORY_LENGTH = 16
"""Events and decisions remembered for each queue."""


class State:
    """Devices, streams and queues, and for each queue its story.

    Attributes
    ----------
    devices, streams, queues, loads : dict
        As in `Snapshot`.
    parts : dict
        The streams that are a part of another one, which policies do not see.
    waiting : dict
        The queues for which a stream is wanted; only its order of keys counts.
    turns : int
        Binds so far.
    opened : QueueId, optional
        The queue that the current event opened.
    reopened : dict
        Openings that wait until an accelerator thread lets go of the closed queue of the same name.
    requests : dict
        Numbers of the migration requests that await their answer, by queue.

    Notes
    -----
    Each change touches the entries that it concerns: nothing is copied per event, whatever the number of queues.
    """

    def __init__(self) -> None:
        self.devices: dict[DeviceId, DeviceView] = {}
        self.streams: dict[StreamId, StreamView] = {}
        self.parts: dict[StreamId, StreamView] = {}
        self.queues: dict[QueueId, QueueView] = {}
        self.waiting: dict[QueueId, None] = {}
        self.turns = 0
        self.opened: QueueId | None = None
        self.reopened: dict[QueueId, QueueOpened] = {}
        self.requests: dict[QueueId, list[int]] = {}
        self.loads: dict[QueueId, QueueLoad] = {}
        self._busy: set[QueueId] = set()
        self._stories: dict[QueueId, deque[tuple[int, Event | Decision]]] = {}
        self._views = (
            MappingProxyType(self.devices),
            MappingProxyType(self.streams),
            MappingProxyType(self.queues),
            MappingProxyType(self.loads),
        )

    def view(self) -> Snapshot:
        """Show the state as it is now; good until the next change."""
        devices, streams, queues, loads = self._views
        return Snapshot(devices, streams, queues, tuple(self.waiting), loads)

    def copy(self) -> Snapshot:
        """Show the state in a snapshot that stays as it is; O(queues)."""
        return Snapshot(
            MappingProxyType(dict(self.devices)),
            MappingProxyType(dict(self.streams)),
            MappingProxyType(dict(self.queues)),
            tuple(self.waiting),
            MappingProxyType(dict(self.loads)),
        )

    def add_device(self, event: DeviceAdded) -> None:
        """Add a device, or bring a lost one back.

        Raises
        ------
        InvalidRequest
            If it is there already, or its streams are not its own; nothing changes then.
        """
        device = event.spec.id
        known = self.devices.get(device)
        if known is not None and known.lost is None:
            raise InvalidRequest(
                f"device {device!r} is there already; report its loss before adding it again"
            )
        ids = [stream.id for stream in event.streams]
        if not ids or len(set(ids)) != len(ids) or any(s.device != device for s in event.streams):
            raise InvalidRequest(
                f"device {device!r} comes with the streams {ids}; give one or more of its own"
            )
        taken = [stream for stream in ids if self.stream(stream) is not None]
        if taken:
            raise InvalidRequest(f"device {device!r} comes with {taken}, which are streams of another device")
        hidden = nested_streams(event.streams, event.spec.units)
        self.parts.update({stream: StreamView(stream, device, 0) for stream in ids if stream in hidden})
        seen = tuple(stream for stream in event.streams if stream.id not in hidden)
        self.devices[device] = DeviceView(event.spec, tuple(stream.id for stream in seen))
        self._rank_streams(seen)

    def lose_device(self, device: DeviceId, reason: str) -> None:
        """Remove a device's streams and remember why it is lost."""
        view = self.devices[device]
        self.devices[device] = view._replace(lost=reason)
        for stream in view.streams:
            del self.streams[stream]
        self.parts = {stream: part for stream, part in self.parts.items() if part.device != device}

    def stream(self, stream: StreamId) -> StreamView | None:
        """Find a stream of a device that works, a part of another one or not."""
        return self.streams.get(stream) or self.parts.get(stream)

    def report_loads(self, event: LoadReported) -> None:
        """Enter a load report; streams and queues that it leaves out were idle."""
        for stream, view in self.streams.items():
            self.streams[stream] = view._replace(load=event.loads.get(stream, IDLE))
        for device, load in event.devices.items():
            if device in self.devices:
                self.devices[device] = self.devices[device]._replace(load=load)
        for queue in self._busy - event.queues.keys():
            self.loads[queue] = QueueLoad(data=self.loads[queue].data)
        known = {queue: load for queue, load in event.queues.items() if queue in self.queues}
        self.loads.update(known)
        self._busy = set(known)

    def begin(self) -> None:
        """Start with a new event."""
        self.opened = None

    def open(self, event: QueueOpened) -> None:
        """Enter a queue that waits for a stream."""
        queue = QueueView(
            event.queue,
            event.session,
            event.application,
            event.priority,
            event.pinned,
            weight=event.weight,
            memory_nbytes=event.memory_nbytes,
            pinned_stream=event.pinned_stream,
        )
        self.queues[queue.id] = queue
        self.waiting[queue.id] = None
        self.opened = queue.id
        self._stories[queue.id] = deque(maxlen=STORY_LENGTH)

    def forget(self, queue: QueueId) -> None:
        """Remove a queue and its story."""
        del self.queues[queue]
        del self._stories[queue]
        self.waiting.pop(queue, None)
        self.loads.pop(queue, None)
        self._busy.discard(queue)

    def put(self, queue: QueueView) -> None:
        """Replace a queue's view."""
        self.queues[queue.id] = queue
        if queue.state is QueueState.WAITING:
            self.waiting[queue.id] = None
        else:
            self.waiting.pop(queue.id, None)

    def occupy(self, stream: StreamId, queue: QueueView, anew: bool = True) -> None:
        """Count one more queue on `stream`, whose turn this was if the queue was placed `anew`."""
        views = self._with(stream)
        view = views[stream]
        self.turns += anew
        views[stream] = view._replace(
            queues=view.queues + 1,
            turn=self.turns if anew else view.turn,
            memory_nbytes=view.memory_nbytes + queue.memory_nbytes,
        )

    def vacate(self, stream: StreamId, queue: QueueView) -> None:
        """Count one queue less on `stream`."""
        views = self._with(stream)
        view = views[stream]
        nbytes = view.memory_nbytes - queue.memory_nbytes
        views[stream] = view._replace(queues=view.queues - 1, memory_nbytes=nbytes)

    def remember(self, queue: QueueId, now: int, what: Event | Decision) -> None:
        """Add to a queue's story, if there is such a queue."""
        story = self._stories.get(queue)
        if story is not None:
            story.append((now, what))

    def story(self, queue: QueueId) -> tuple[str, ...]:
        """Tell what happened to a queue, oldest first."""
        return tuple(f"{now} ns: {_words(what)}" for now, what in self._stories.get(queue, ()))

    def _with(self, stream: StreamId) -> dict[StreamId, StreamView]:
        return self.parts if stream in self.parts else self.streams

    def _rank_streams(self, added: tuple[StreamSpec, ...]) -> None:
        """Order all streams: the first of every device, then the second of every device, and so on."""
        views = {**self.streams, **{spec.id: StreamView(spec.id, spec.device, 0) for spec in added}}
        place = {
            stream: (index, order)
            for order, device in enumerate(self.devices.values())
            for index, stream in enumerate(device.streams)
            if device.lost is None
        }
        self.streams.clear()
        for rank, stream in enumerate(sorted(views, key=place.__getitem__)):
            self.streams[stream] = views[stream]._replace(rank=rank)


def _words(what: Event | Decision) -> str:
    values = ", ".join(
        f"{f.name}={getattr(what, f.name)!r}" for f in fields(what) if getattr(what, f.name) not in (None, "")
    )
    return f"{type(what).__name__}({values})"
