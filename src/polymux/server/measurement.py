"""Running means of what launches and copies took, for the estimates that the policies get."""

from __future__ import annotations

from collections.abc import Callable

from polymux.core.ids import DeviceId
from polymux.server.placement import HOST
from polymux.server.transfer import Transfer

WEIGHT = 0.125
"""Of the newest measurement."""

Way = tuple[int, int]
"""From one location to another."""


class Measurements:
    """Updated and read by several threads; an update of a mean that is lost does no harm."""

    def __init__(self) -> None:
        self._launch_ns: dict[tuple[DeviceId, int], float] = {}
        self._ns_per_byte: dict[Way, float] = {}
        self._copied_nbytes: dict[Way, int] = {}

    def launched(self, device: DeviceId, kernel_id: int, duration_ns: int) -> None:
        """Take the duration of one launch into account."""
        key = (device, kernel_id)
        mean = self._launch_ns.get(key)
        self._launch_ns[key] = duration_ns if mean is None else mean + WEIGHT * (duration_ns - mean)

    def forget(self, kernel_id: int) -> None:
        """Drop what is known of a kernel that nobody can name any more."""
        for key in [key for key in list(self._launch_ns) if key[1] == kernel_id]:
            self._launch_ns.pop(key, None)

    def copied(self, transfer: Transfer) -> None:
        """Take one copy into account."""
        if transfer.nbytes == 0:
            return
        way = (transfer.source, transfer.target)
        self._copied_nbytes[way] = self._copied_nbytes.get(way, 0) + transfer.nbytes
        newest = (transfer.end_ns - transfer.start_ns) / transfer.nbytes
        mean = self._ns_per_byte.get(way)
        self._ns_per_byte[way] = newest if mean is None else mean + WEIGHT * (newest - mean)

    def copied_nbytes(self, location: int) -> tuple[int, int]:
        """Bytes copied into a device's memory and out of it so far."""
        copied = list(self._copied_nbytes.items())
        into = sum(nbytes for (_, target), nbytes in copied if target == location)
        return into, sum(nbytes for (source, _), nbytes in copied if source == location)

    def ps_per_byte(self, location: int) -> tuple[int | None, int | None]:
        """Mean cost of a copy into a device's memory and out of it, in picoseconds per byte; None: never measured.

        Notes
        -----
        Copies from and to the host count; only where there was none, those from and to other devices.
        """
        into = self._cost((HOST, location)) or self._least(lambda way: way[1] == location)
        out = self._cost((location, HOST)) or self._least(lambda way: way[0] == location)
        return (None if into is None else round(1000 * into), None if out is None else round(1000 * out))

    def gain_ns(self, kernel_id: int, here: DeviceId, there: DeviceId) -> int | None:
        """Estimate by how much a kernel is faster elsewhere; None: it has not run on both."""
        at_here = self._launch_ns.get((here, kernel_id))
        at_there = self._launch_ns.get((there, kernel_id))
        return None if at_here is None or at_there is None else round(at_here - at_there)

    def transfer_ns(self, nbytes_by_location: dict[int, int], to: int) -> int | None:
        """Estimate the time to bring data to a memory; None: such a copy was never made.

        Parameters
        ----------
        nbytes_by_location : dict
            Where how many bytes are now; 0 is the host.
        to : int
            Where they are needed.
        """
        total = 0.0
        for location, nbytes in nbytes_by_location.items():
            cost = self._cost((location, to))
            if cost is None:  # not directly so far: through the host
                legs = self._cost((location, HOST)), self._cost((HOST, to))
                if legs[0] is None or legs[1] is None:
                    return None
                cost = legs[0] + legs[1]
            total += cost * nbytes
        return round(total)

    def _cost(self, way: Way) -> float | None:
        """Nanoseconds per byte."""
        return 0.0 if way[0] == way[1] else self._ns_per_byte.get(way)

    def _least(self, chosen: Callable[[Way], bool]) -> float | None:
        return min((cost for way, cost in list(self._ns_per_byte.items()) if chosen(way)), default=None)
