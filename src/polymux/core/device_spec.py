"""What a device and its streams are, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from polymux.core.ids import DeviceId, StreamId


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a device's compute units.

    Parameters
    ----------
    units : tuple of int, optional
        The units by number; None is the whole device.
    """

    units: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """An accelerator's properties.

    Parameters
    ----------
    id : DeviceId
    api : str
        How it is driven: ``"cpu"``, ``"opencl"``, ``"simulated"``.
    name : str
        As its vendor calls it.
    memory_nbytes : int
        Capacity of its memory in bytes.
    memory : {"host", "own"}
        ``"host"``: kernels work on the segment itself; ``"own"``: buffers are copied in and out.
    units : int
        Compute units (cores, OpenCL compute units, SMs).
    streams : int
        How many accelerator threads feed it.
    apis : tuple of str
        The kinds of implementation that it runs, best first.
    partitionable : bool
        Whether shares smaller than the whole device are possible.
    details : str
        Anything else an operator may want to know, in a sentence.
    shares : tuple of Share
        That of each stream; empty: every stream uses the whole device.
    launch_ahead : int
        Tasks that a stream may have started and not ended; 1: each ends before the next one starts.
    cores : tuple of int
        Cores of the host that its units are, by the kernel's numbers; empty where they are none.
    """

    id: DeviceId
    api: str
    name: str
    memory_nbytes: int
    memory: Literal["host", "own"]
    units: int
    streams: int
    apis: tuple[str, ...]
    partitionable: bool = False
    details: str = ""
    shares: tuple[Share, ...] = ()
    launch_ahead: int = 1
    cores: tuple[int, ...] = ()

    def share_of(self, stream: int) -> Share:
        """Return the part of the device that its `stream`-th stream uses."""
        return self.shares[stream] if self.shares else Share()


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """An ordered queue of one device and share, fed by one accelerator thread."""

    id: StreamId
    device: DeviceId
    share: Share = Share()


def nested_streams(streams: Sequence[StreamSpec], units: int) -> frozenset[StreamId]:
    """Find the streams that use a part of what another stream of the same device uses.

    Parameters
    ----------
    streams : sequence of StreamSpec
        All streams of one device.
    units : int
        Compute units of the device.

    Returns
    -------
    frozenset of StreamId
        They take only queues that are pinned to them: two streams that want the same units are in each other's way,
        which whoever pins queues has to avoid.
    """
    used = {
        stream.id: frozenset(range(units) if stream.share.units is None else stream.share.units)
        for stream in streams
    }
    return frozenset(stream for stream, own in used.items() if any(own < other for other in used.values()))


@dataclass(frozen=True, slots=True)
class AbsentDevice:
    """A kind of device that is not here, and why, in a sentence."""

    name: str
    reason: str
