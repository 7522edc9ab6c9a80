"""What accelerator threads know of each other's devices, and whom they tell what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polymux.core.device_spec import DeviceSpec
from polymux.core.event import Event, HeldHead
from polymux.core.ids import DeviceId, QueueId, StreamId
from polymux.server.health import Health
from polymux.server.kernels import Kernel
from polymux.server.session import TaskQueue

Post = Callable[[Event], None]
Drop = Callable[[TaskQueue, str], None]
Ran = Callable[[QueueId, DeviceId, int, int, int, int], None]


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices, as accelerator threads need to know each other's."""

    devices: tuple[DeviceSpec, ...]
    locations: dict[DeviceId, int]
    health: dict[DeviceId, Health]

    def having(self, kernel: Kernel) -> tuple[DeviceId, ...]:
        """Devices that have an implementation of a kernel."""
        return tuple(device.id for device in self.devices if kernel.api_for(device.apis) is not None)

    def wished(self, hint: int) -> DeviceId | None:
        """Device of a task's hint (its number plus one); None: there is none of that number."""
        return self.devices[hint - 1].id if 0 < hint <= len(self.devices) else None


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Whom an accelerator thread tells what."""

    post: Post
    """An event to the scheduler."""
    ask: Callable[[HeldHead], None]
    """A question about a queue that was let go of; may be answered before this returns."""
    drop: Drop
    """A queue whose client breaks the rules of the ring."""
    ran: Ran
    """What a stream of a device did for a queue that it lets go of: tasks, busy ns, waiting ns, failed tasks."""
    wanted: Callable[[DeviceId, StreamId, int, int | None, int], None]
    """That a stream has tasks for a device that a job may have: highest priority, earliest deadline in ns, weight."""
    drained: Callable[[DeviceId, StreamId], None]
    """That a stream has no task any more, or was told to leave; none runs."""
