"""What it costs to have a queue on a device: bytes that have to move there, room that has to be made.

The figures come from load reports: where a queue's data are, how much of a memory is used, and how long copies into it
and out of it took so far. Whole numbers throughout, so that a replay on another machine compares equal.
"""

from __future__ import annotations

from collections.abc import Mapping

from polymux.core.ids import DeviceId
from polymux.core.snapshot import QueueView, Snapshot

ASSUMED_PS_PER_BYTE = 200
"""Of a copy that was never measured: 5 GB/s."""

HOST = "host"


def needed_nbytes(snapshot: Snapshot, queue: QueueView) -> int:
    """Bytes of data that a queue uses: what its client expects, or what it used last if that is more."""
    return max(queue.memory_nbytes, sum(snapshot.load_of(queue.id).data.values()))


def missing_nbytes(snapshot: Snapshot, queue: QueueView, device: DeviceId) -> int:
    """Bytes that others would have to make room for on a device, beside what is used and promised there."""
    view = snapshot.devices[device]
    streams = [snapshot.streams[stream] for stream in view.streams if stream in snapshot.streams]
    promised_nbytes = sum(stream.memory_nbytes for stream in streams)
    if queue.device == device:
        promised_nbytes -= queue.memory_nbytes
    there_nbytes = snapshot.load_of(queue.id).data.get(device, 0)
    taken_nbytes = max(promised_nbytes, view.load.used_nbytes - there_nbytes)
    return max(0, needed_nbytes(snapshot, queue) + taken_nbytes - view.spec.memory_nbytes)


def transfer_ns(snapshot: Snapshot, data: Mapping[str, int], device: DeviceId) -> int:
    """Time to bring data to a device.

    Parameters
    ----------
    snapshot : Snapshot
    data : mapping
        Bytes by the device whose memory holds them, or ``"host"``.
    device : DeviceId
    """
    total_ps = 0
    for place, nbytes in data.items():
        if place != device:
            total_ps += nbytes * (_out_ps(snapshot, place) + _into_ps(snapshot, device))
    return total_ps // 1000


def room_ns(snapshot: Snapshot, queue: QueueView, device: DeviceId) -> int:
    """Time to spill what others have on a device, and to bring it back when they need it again."""
    rates = _out_ps(snapshot, device) + _into_ps(snapshot, device)
    return missing_nbytes(snapshot, queue, device) * rates // 1000


def _out_ps(snapshot: Snapshot, place: str) -> int:
    return 0 if place == HOST else _rate(snapshot, DeviceId(place), into=False)


def _into_ps(snapshot: Snapshot, device: DeviceId) -> int:
    return _rate(snapshot, device, into=True)


def _rate(snapshot: Snapshot, device: DeviceId, into: bool) -> int:
    view = snapshot.devices.get(device)
    if view is None or view.spec.memory == HOST:
        return 0
    rate = view.load.into_ps_per_byte if into else view.load.out_ps_per_byte
    return ASSUMED_PS_PER_BYTE if rate is None else rate
