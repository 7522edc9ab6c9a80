"""Snapshots for tests of policies, written in a line."""

from __future__ import annotations

from collections.abc import Iterable

from polymux.core.device_spec import DeviceSpec
from polymux.core.event import StreamLoad
from polymux.core.ids import DeviceId, QueueId, SessionId, StreamId
from polymux.core.snapshot import IDLE, DeviceView, QueueState, QueueView, Snapshot, StreamView


def device(name: str, streams: int = 1, lost: str | None = None) -> DeviceView:
    api = name.partition(":")[0]
    spec = DeviceSpec(DeviceId(name), api, api, 1 << 30, "host", 4, streams, (api,))
    return DeviceView(spec, tuple(StreamId(f"{name}/{i}") for i in range(streams)), lost)


def stream(name: str, rank: int = 0, queues: int = 0, turn: int = 0, load: StreamLoad = IDLE) -> StreamView:
    return StreamView(StreamId(name), DeviceId(name.partition("/")[0]), rank, queues, turn, load)


def queue(name: str = "1.0", **fields: object) -> QueueView:
    return QueueView(QueueId(name), SessionId(1), "app", **fields)  # type: ignore[arg-type]


def snapshot(
    devices: Iterable[DeviceView], queues: Iterable[QueueView] = (), streams: Iterable[StreamView] = ()
) -> Snapshot:
    """Put views together; streams that are left out have no queues."""
    devices, queues, given = list(devices), list(queues), {view.id: view for view in streams}
    names = [name for view in devices if view.lost is None for name in view.streams]
    return Snapshot(
        {view.spec.id: view for view in devices},
        {name: given.get(name, stream(name, rank)) for rank, name in enumerate(names)},
        {view.id: view for view in queues},
        tuple(view.id for view in queues if view.state is QueueState.WAITING),
    )
