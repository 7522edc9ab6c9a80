"""What applications ask for that schedule requests on a device by themselves: that no other one does the same there.

Such a scheduler promises deadlines by what it knows of a device, which is what it runs there itself. Two of
them would promise the same time. Tasks of others may still run there; a scheduler sees by its measurements
how much they take.
"""

from __future__ import annotations

from polymux.core.errors import InvalidRequest
from polymux.core.ids import DeviceId
from polymux.server.parts import Parts
from polymux.server.request import Operation, Request


def claiming_operations(parts: Parts) -> dict[str, Operation]:
    """Build the table of operations."""

    def claim(request: Request) -> None:
        """Schedule on these devices, and on no others any more, until the session ends; all of them or none."""
        session = request.session
        wanted = frozenset(DeviceId(name) for name in request.text("devices").split(",") if name)
        known = [device.id for device in parts.machine.devices]
        for device in sorted(wanted):
            if device not in known:
                raise InvalidRequest(f"device {device!r} does not exist; the server has {', '.join(known)}")
            for other in parts.sessions.values():
                if other is not session and device in other.claimed:
                    raise InvalidRequest(
                        f"{other.name!r} (process {other.peer.pid}) schedules requests on {device} already, and two"
                        " schedulers would promise the same time; let that one serve these models as well, or give"
                        " each a device of its own"
                    )
        session.claimed = wanted
        request.answer()

    return {"claim": claim}
