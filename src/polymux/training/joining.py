"""From the options of a job to a lease of a server's."""

from __future__ import annotations

from collections.abc import Sequence

from polymux.client import Client
from polymux.client.lease import Lease
from polymux.core.errors import InvalidRequest
from polymux.segment import default_socket_path
from polymux.training.options import JobOptions

_KIND = "cpu:"
_SEGMENT_NBYTES = 32 << 20
"""A job has no buffers in its segment, only its gate: about the least that a segment may have."""


class JoinedLease:
    """A lease with the connection that is there for it alone; see `polymux.training.lease_keeper.Lease`."""

    def __init__(self, client: Client, lease: Lease) -> None:
        self._client = client
        self._lease = lease
        self.gate = lease.gate
        self.check = lease.check
        self.step = lease.step
        self.report = lease.report
        self.idle = lease.idle

    @property
    def device(self) -> str | None:
        """The device that it is for at the moment."""
        return self._lease.device

    @property
    def cores(self) -> Sequence[int]:
        """Cores of the device; empty when it has none."""
        return self._lease.cores

    @property
    def threads(self) -> int:
        """How many threads the device has room for."""
        return self._lease.threads

    def close(self) -> None:
        """End the lease and the connection."""
        try:
            self._lease.close()
        finally:
            self._client.close()


def socket_of(socket: str | None) -> str:
    """The path at which a server is looked for."""
    return socket or default_socket_path()


def open_lease(options: JobOptions) -> JoinedLease:
    """Connect to the server and ask for a lease.

    Raises
    ------
    NoServer
        When nothing listens.
    PolymuxError
        When the server refuses.
    """
    client = Client(options.socket, name=options.name, segment_nbytes=_SEGMENT_NBYTES)
    try:
        lease = client.lease(
            name=options.name,
            priority=options.priority,
            weight=options.weight,
            memory_nbytes=options.memory_nbytes,
            peak_nbytes=options.peak_nbytes,
            device=_trainable(options.device),
            levels=options.levels,
        )
    except BaseException:
        client.close()
        raise
    return JoinedLease(client, lease)


def _trainable(device: str | None) -> str | None:
    """Refuse a device that PyTorch does not compute on."""
    if device is not None and not device.startswith(_KIND):
        raise InvalidRequest(
            f"device={device!r}: the host's processors are what jobs train on; name one, as cpu:0"
        )
    return device
